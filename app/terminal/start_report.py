"""Reports the start of a server: the progress of loading, the models and addresses, or the reason of a failure.

The lines that tools wait for are logged when the models are loaded, as Triton does, although the ports are open before.
Source: docs/spec/server-options.md section 4, docs/spec/trace-and-log.md section 6.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from app.process.garbage_collector import settle_collector
from app.settings.precedence import DEFAULT
from app.settings.server import ServerSettings
from app.settings.services import Service
from app.terminal.console_tables import ModelRow, addresses_table, models_table, options_table
from app.terminal.progress_bar import ProgressBar
from core.engine.in_process import InferenceEngine
from core.lifecycle.overview import VersionOverview
from core.lifecycle.serving_phase import Phase
from core.lifecycle.state import ModelState
from core.observability.logging import log_table

_log = logging.getLogger("trident.server")

# The interval at which the progress of loading is read and drawn.
_POLL_SECONDS = 0.25
_MAX_SHOWN = 3
_STARTED = {
    Service.HTTP: "HTTPService",
    Service.SAGEMAKER: "Sagemaker HTTPService",
    Service.VERTEX_AI: "Vertex AI HTTPService",
    Service.METRICS: "Metrics Service",
}
# The group of routes through which clients load models.
_CONTROL = "model-repository"
_NO_MODEL = (
    "there is no model in %s: a model repository has a folder for each model, which has a folder for each version; "
    "--single-model=NAME serves a repository that is a single model"
)


class StartReport:
    """Watches `engine` on a thread until it has loaded its models. Calls `fail` with a reason if the start fails."""

    def __init__(self, settings: ServerSettings, engine: InferenceEngine, fail: Callable[[str], None]) -> None:
        self._settings = settings
        self._engine = engine
        self._fail = fail
        self._thread = threading.Thread(target=self._watch, name="trident-start-report", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _watch(self) -> None:
        shown = ProgressBar()
        while not self._engine.wait_loaded(timeout_s=_POLL_SECONDS):
            phase = self._engine.phase()
            if phase.name == Phase.EXITING:
                return
            shown.show(phase.download)
        shown.show(None)
        settle_collector()
        self._log_settings()
        rows = [_row(line) for line in self._engine.overview()]
        log_table(_log, "models", models_table(rows))
        phase = self._engine.phase()
        if phase.name == Phase.FAILED and self._settings.exit_on_error:
            self._fail(f"Internal - failed to load all models{_reasons(phase.failures)}")
            return
        problem = default_model_problem(self._settings, rows)
        if problem and self._settings.exit_on_error and phase.name != Phase.EXITING:
            self._fail(f"Invalid argument - {problem}")
            return
        if not rows and self._settings.model_control_mode != "explicit":
            _log.warning(_NO_MODEL, ", ".join(self._settings.model_repository))
        log_table(_log, "addresses", addresses_table(self._addresses()))
        for name, (address, port) in self._settings.services().items():
            _log.info("Started %s at %s:%d", _STARTED[name], address, port)

    def _log_settings(self) -> None:
        settings = self._settings
        given = [row for row in settings.describe() if row.source != DEFAULT]
        log_table(_log, "options that are not at their defaults", options_table(given))
        if settings.allow_sagemaker and settings.sagemaker is not None:
            log_table(_log, "SageMaker's settings", options_table(settings.sagemaker.describe()))
        if settings.vertex is not None:
            log_table(_log, "Vertex AI's settings", options_table(settings.vertex.describe()))

    def _addresses(self) -> list[tuple[str, str]]:
        services = self._settings.services()
        return [(name[0].upper() + name[1:], f"{address}:{port}") for name, (address, port) in services.items()]


def _row(line: VersionOverview) -> ModelRow:
    entry = line.entry
    return ModelRow(
        entry.name,
        "" if entry.version is None else str(entry.version),
        "" if entry.state is None else entry.state.value,
        line.device,
        line.execution_provider,
        entry.reason,
    )


def default_model_problem(settings: ServerSettings, rows: Sequence[ModelRow]) -> str:
    """Why Vertex AI's default model will never be ready, given the `rows` of models after startup; "" if it may be.

    The health probe asks for that model, so the server would stay unhealthy.
    """
    vertex = settings.vertex
    if vertex is None or not vertex.default_model:
        return ""
    loaded = sorted({row.model for row in rows if row.state == ModelState.READY.value})
    changes = settings.allow_http or _CONTROL in vertex.public_groups
    may_be_loaded = settings.model_control_mode == "poll" or (settings.model_control_mode == "explicit" and changes)
    if vertex.default_model in loaded or may_be_loaded:
        return ""
    listed = ", ".join(loaded[:_MAX_SHOWN]) + (" …" if loaded[_MAX_SHOWN:] else "")
    return f"--vertex-ai-default-model is '{vertex.default_model}', which is none of the loaded models: {listed}"


def _reasons(failures: Mapping[str, str]) -> str:
    """The first failures and their reasons, for the last line of the log; earlier lines have all of them."""
    if not failures:
        return ""
    shown = [f"{name}: {reason}" for name, reason in sorted(failures.items())[:_MAX_SHOWN]]
    more = len(failures) - len(shown)
    return f" ({'; '.join(shown)}{f'; and {more} more' if more else ''})"
