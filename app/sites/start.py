"""Watches the start of an engine, until its models are loaded and the server serves or fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from trident.app.process.heap import settle_collector
from trident.app.settings.server import SERVER_OPTIONS, ServerSettings
from trident.app.terminal import (
    ModelRow,
    ProgressBar,
    log_first_request,
    log_models,
    log_services,
    log_settings,
    model_row,
)
from trident.core.config.spec import ModelSpec
from trident.core.engine.in_process import InferenceEngine
from trident.core.errors import ServerError
from trident.core.lifecycle.state import ModelState, Phase, ServingPhase

_MAX_SHOWN = 3
# The group of routes through which clients load models.
_CONTROL = "model-repository"


def start_failure(settings: ServerSettings, phase: ServingPhase, rows: Sequence[ModelRow]) -> str:
    """Why the server cannot start, as `CODE - message`; "" if it can. `rows` are the model versions after startup."""
    if not settings.exit_on_error:
        return ""
    if phase.name == Phase.FAILED:
        return f"Internal - failed to load all models{_reasons(phase.failures)}"
    problem = default_model_problem(settings, rows)
    return f"Invalid argument - {problem}" if problem and phase.name != Phase.EXITING else ""


def default_model_problem(settings: ServerSettings, rows: Sequence[ModelRow]) -> str:
    """Why a platform's default model will never be ready, given the `rows` of models after startup; "" if it may be.

    The health probe asks for that model, so the server would stay unhealthy.
    """
    loaded = sorted({row.model for row in rows if row.state == ModelState.READY.value})
    for platform, own in settings.open_platforms.items():
        if not platform.required_model or not own.default_model or own.default_model in loaded:
            continue
        changes = settings.allow_http or _CONTROL in own.public_groups
        if (
            settings.reload
            or settings.model_control_mode == "poll"
            or (settings.model_control_mode == "explicit" and changes)
        ):
            continue
        listed = ", ".join(loaded[:_MAX_SHOWN]) + (" …" if loaded[_MAX_SHOWN:] else "")
        flag = SERVER_OPTIONS[platform.required_model].flag
        return f"--{flag} is '{own.default_model}', which is not among the loaded models: {listed}"
    return ""


def _reasons(failures: Mapping[str, str]) -> str:
    """The first failures and their reasons, for the last line of the log; earlier lines have all of them."""
    if not failures:
        return ""
    shown = [f"{name}: {reason}" for name, reason in sorted(failures.items())[:_MAX_SHOWN]]
    more = len(failures) - len(shown)
    return f" ({'; '.join(shown)}{f'; and {more} more' if more else ''})"


# The interval at which the progress of loading is read and drawn.
_POLL_SECONDS = 0.25


class StartWatch:
    """Watches `engine` on its own thread after `start`. Calls `fail` with the reason if the server cannot serve.

    The lines that tools wait for are logged when the models are loaded, as Triton does, although the ports are open
    before.
    """

    def __init__(
        self,
        settings: ServerSettings,
        engine: InferenceEngine,
        fail: Callable[[str], None],
        *,
        reports: bool = True,
        on_success: Callable[[], None] = lambda: None,
    ) -> None:
        """`reports`: of several engines one logs what the server serves. `on_success` is called before it does."""
        self._on_success = on_success
        self._reports = reports
        self._settings = settings
        self._engine = engine
        self._fail = fail
        self._thread = threading.Thread(target=self._watch, name="trident-start", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _watch(self) -> None:
        if not self._wait_loaded():
            return
        rows = [model_row(line) for line in self._engine.overview()]
        if self._reports:
            log_settings(self._settings)
            log_models(rows)
        failure = start_failure(self._settings, self._engine.phase(), rows)
        if failure:
            self._fail(failure)
            return
        self._on_success()
        settle_collector()
        if self._reports:
            log_services(self._settings)
            ready = dict.fromkeys(row.model for row in rows if row.state == ModelState.READY.value)
            log_first_request(self._settings, self._specs(ready))

    def _specs(self, models: Iterable[str]) -> Iterator[ModelSpec]:
        for model in models:
            with suppress(ServerError):  # unloaded meanwhile, or one of two that have the name
                yield self._engine.model_spec(model)

    def _wait_loaded(self) -> bool:
        """Draw the progress until the models are loaded. Returns False if the server stops before."""
        shown = ProgressBar() if self._reports else None
        while not self._engine.wait_loaded(timeout_s=_POLL_SECONDS):
            phase = self._engine.phase()
            if phase.name == Phase.EXITING:
                return False
            if shown is not None:
                shown.show(phase.download)
        if shown is not None:
            shown.show(None)
        return True
