"""The life of the models of a server: loaded at start, kept while it serves, drained and freed at its end.

Source: spec/repository.md sections 1.2 to 1.5, spec/server-options.md section 5.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from core.errors import ServerError
from core.inference import ServingPhase
from core.lifecycle.loader import ModelLoader
from core.lifecycle.models import Models
from core.lifecycle.options import EngineOptions
from core.lifecycle.state import ModelState
from core.repository.layout import ModelDirectory, scan_repository

_log = logging.getLogger("trident.lifecycle")

NOT_UNIQUE = "model appears in two or more repositories"


class Lifecycle:
    """Loads on native threads of its own; `start` returns at once and `phase` says how far it is."""

    def __init__(self, options: EngineOptions, loader: ModelLoader) -> None:
        self.models = Models()
        self._options = options
        self._loader = loader
        self._lock = threading.Lock()
        self._phase = "starting"
        self._loading: list[str] = []
        self._done = 0
        self._total = 0
        self._failures: dict[str, str] = {}
        self._finished_loading = threading.Event()
        self._thread = threading.Thread(target=self._load_all, name="trident-startup", daemon=True)

    def start(self) -> None:
        """Begin to load every model of every repository."""
        self._thread.start()

    def wait_loaded(self, timeout_s: float) -> bool:
        """Whether loading ended, well or badly, within `timeout_s` seconds. Blocks: never on a front end's thread."""
        return self._finished_loading.wait(timeout_s)

    def phase(self) -> ServingPhase:
        """starting -> loading -> ready | failed, and exiting from any of them."""
        with self._lock:
            return ServingPhase(
                name=self._phase,
                model=self._loading[0] if self._loading else "",
                done=self._done,
                total=self._total,
                failures=dict(self._failures),
            )

    def begin_exit(self) -> None:
        """Unready from now on; requests are still served."""
        with self._lock:
            self._phase = "exiting"

    def finish(self, timeout_s: float) -> bool:
        """Stop taking requests, serve those taken, free everything. False if some were left after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        versions = [v for v in self.models.versions() if v.is_ready]
        for version in versions:
            version.stop()
        drained = True
        for version in versions:
            left = max(0.0, deadline - time.monotonic())
            if version.in_flight:
                _log.info(
                    "Timeout %d: model '%s' (version %d) has %d in-flight inferences",
                    left,
                    version.name,
                    version.version,
                    version.in_flight,
                )
            drained = version.unload(left) and drained
        self.models.refresh()
        return drained

    # --- on the startup thread and the loader threads ----------------------------------------------------------------

    def _load_all(self) -> None:
        try:
            directories = self._scan()
        except ServerError as error:
            _log.error("%s", error.message, extra={"hint": error.hint})
            self._end_loading("failed", {"model repository": error.reason})
            return
        self._loader.plan_threads(len(directories))
        with self._lock:
            self._total = len(directories)
            if self._phase == "starting":
                self._phase = "loading"
        with ThreadPoolExecutor(max(1, self._options.load_threads), "trident-load") as pool:
            for future in as_completed([pool.submit(self._load, d) for d in directories]):
                future.result()
        with self._lock:
            failures = dict(self._failures)
        self._end_loading("failed" if failures else "ready", failures)

    def _end_loading(self, phase: str, failures: dict[str, str]) -> None:
        with self._lock:
            self._failures = failures
            if self._phase != "exiting":
                self._phase = phase
        self._finished_loading.set()

    def _scan(self) -> list[ModelDirectory]:
        """The model directories of all repositories; those whose name is not unique are entered as unavailable."""
        found: dict[str, list[ModelDirectory]] = {}
        for repository in self._options.repositories:
            for directory in scan_repository(Path(repository)):
                found.setdefault(directory.name, []).append(directory)
        unique: list[ModelDirectory] = []
        for name, directories in sorted(found.items()):
            if len(directories) == 1:
                self.models.add(name)
                unique.append(directories[0])
            else:
                _log.error("failed to poll model '%s': not unique across all model repositories", name)
                self.models.add(name, NOT_UNIQUE)
                self._failures[name] = NOT_UNIQUE
        return unique

    def _load(self, directory: ModelDirectory) -> None:
        with self._lock:
            self._loading.append(directory.name)
        try:
            failure = self._load_model(directory)
        finally:
            with self._lock:
                self._loading.remove(directory.name)
                self._done += 1
        if failure:
            with self._lock:
                self._failures[directory.name] = failure

    def _load_model(self, directory: ModelDirectory) -> str:
        """Load the versions that the policy selects. Returns why the model failed, or "" if it did not."""
        try:
            versions = self._loader.prepare(directory)
        except ServerError as error:
            _log.error(
                "failed to load '%s': %s",
                directory.name,
                error.reason,
                extra={"model": directory.name, "hint": error.hint},
            )
            self.models.add(directory.name, error.reason)
            return error.reason
        for version in versions:
            self.models.put(version)
        for version in versions:
            self._loader.load(directory, version)
            self.models.refresh()
        failed: Sequence[str] = [v.state.reason for v in versions if v.state.current is ModelState.UNAVAILABLE]
        if not failed:
            _log.info("successfully loaded '%s'", directory.name)
        return "; ".join(failed)
