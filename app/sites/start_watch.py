"""Watches the start of an engine, until its models are loaded and the server serves or fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from app.process.garbage_collector import settle_collector
from app.settings.server import ServerSettings
from app.sites.start_failure import start_failure
from app.terminal.progress_bar import ProgressBar
from app.terminal.start_report import log_first_request, log_models, log_services, log_settings, model_row
from core.config.model_spec import ModelSpec
from core.engine.in_process import InferenceEngine
from core.errors import ServerError
from core.lifecycle.serving_phase import Phase
from core.lifecycle.state import ModelState

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
