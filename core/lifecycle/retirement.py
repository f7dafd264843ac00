"""Versions that leave: each is drained and freed on a native thread of its own, so that nobody waits for it.

Source: spec/repository.md section 1.6, "In-flight requests"; section 1.7.
"""

from __future__ import annotations

import logging
import threading
import time

from core.lifecycle.version import ModelVersion

_log = logging.getLogger("trident.lifecycle")


class Retirement:
    """Any loader thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leaving: dict[threading.Thread, ModelVersion] = {}

    def begin(self, version: ModelVersion, cause: str) -> None:
        """READY -> UNLOADING now, -> UNAVAILABLE when what is in flight is answered and the memory is free."""
        version.begin_unload(cause)
        thread = threading.Thread(
            target=self._finish, args=(version,), name=f"trident-unload-{version.name}", daemon=True
        )
        with self._lock:
            self._leaving[thread] = version
        thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Whether all that are leaving are gone within `timeout_s` seconds; what they still hold then is abandoned."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            leaving = list(self._leaving.items())
        for thread, version in leaving:
            left = max(0.0, deadline - time.monotonic())
            if version.in_flight:
                _log.info(
                    "Timeout %d: model '%s' (version %d) has %d in-flight inferences",
                    left,
                    version.name,
                    version.version,
                    version.in_flight,
                )
            thread.join(left)
            if thread.is_alive():
                version.abandon()
        return not any(thread.is_alive() for thread, _ in leaving)

    def _finish(self, version: ModelVersion) -> None:
        try:
            version.finish_unload()
            _log.info("successfully unloaded '%s' version %d", version.name, version.version)
        finally:
            with self._lock:
                self._leaving.pop(threading.current_thread(), None)
