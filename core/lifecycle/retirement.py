"""Versions that leave: each is drained and freed on its own native thread, so that no caller waits for it.

Source: docs/spec/repository.md section 1.6, "In-flight requests"; section 1.7; docs/spec/server-options.md section 5
(log lines).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from core.lifecycle.version import ModelVersion

_log = logging.getLogger("trident.lifecycle")


class Retirement:
    """Called on loader threads. `drain` and `wait` log what they wait for every `report_s` seconds.

    After `limit_s` seconds a version that leaves ends the processes of its model in which requests still are; None
    waits for them without a limit.
    """

    def __init__(self, report_s: float = 1.0, limit_s: float | None = None) -> None:
        self._report_s = report_s
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._leaving: dict[threading.Thread, ModelVersion] = {}

    def begin(self, version: ModelVersion, cause: str) -> None:
        """READY -> UNLOADING now; -> UNAVAILABLE when the requests in flight are answered and the memory is free."""
        version.begin_unload(cause)
        thread = threading.Thread(
            target=self._finish, args=(version,), name=f"trident-unload-{version.name}", daemon=True
        )
        with self._lock:
            self._leaving[thread] = version
        thread.start()

    @property
    def leaving(self) -> list[ModelVersion]:
        """The versions that are not gone yet."""
        with self._lock:
            return list(self._leaving.values())

    def drain(self, serving: Iterable[ModelVersion], timeout_s: float) -> None:
        """Block until no version, serving or leaving, has requests in flight, at most `timeout_s` seconds.

        A request may ask other models while it is executed, so none of them can leave before all are answered.
        """
        deadline = time.monotonic() + timeout_s
        versions = [*serving, *self.leaving]
        while any(version.in_flight for version in versions) and (left := deadline - time.monotonic()) > 0:
            log_in_flight(versions, left)
            until = time.monotonic() + min(left, self._report_s)
            for version in versions:
                version.drain(max(0.0, until - time.monotonic()))

    def wait(self, timeout_s: float) -> bool:
        """Whether all leaving versions are gone within `timeout_s` seconds. Then the others abandon their requests."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            leaving = dict(self._leaving)
        left = timeout_s
        log_in_flight(leaving.values(), left)
        while leaving and left > 0:
            _join(leaving, time.monotonic() + min(left, self._report_s))
            leaving = {thread: version for thread, version in leaving.items() if thread.is_alive()}
            left = deadline - time.monotonic()
            if any(version.in_flight for version in leaving.values()):
                log_in_flight(leaving.values(), max(0.0, left))
        for version in leaving.values():
            version.abandon()
        return not any(thread.is_alive() for thread in leaving)

    def _finish(self, version: ModelVersion) -> None:
        try:
            version.finish_unload(self._limit_s)
            _log.info("successfully unloaded '%s' version %d%s", version.name, version.version, version.origin)
        finally:
            with self._lock:
                self._leaving.pop(threading.current_thread(), None)


def log_in_flight(versions: Iterable[ModelVersion], seconds_left: float) -> None:
    """Log how many of `versions` have requests in flight, and how many each has."""
    in_flight = [(version, count) for version in versions if (count := version.in_flight)]
    _log.info("Timeout %d: Found %d model versions that have in-flight inferences", round(seconds_left), len(in_flight))
    for version, count in in_flight:
        _log.info("Model '%s' (version %d) has %d in-flight inferences", version.name, version.version, count)


def _join(threads: Iterable[threading.Thread], until: float) -> None:
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
