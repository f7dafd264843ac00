"""Idle models give back the memory that only their executions needed: arenas keep that of the largest batch.

Source: docs/gpu.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from trident.core.lifecycle.memory import CPU, MemoryLedger
from trident.core.lifecycle.version import ModelVersion

_log = logging.getLogger("trident.lifecycle")

_LOOK_EVERY_S = 1.0


class IdleMemory:
    """Looks on a thread of its own, from `start` to `stop`. `versions` are those that serve, at any moment.

    A model that was asked nothing for `after_s` seconds gives back its memory, with 0 only when a load needs it.
    """

    def __init__(self, versions: Callable[[], Iterable[ModelVersion]], ledger: MemoryLedger, after_s: float) -> None:
        self._versions = versions
        self._ledger = ledger
        self._after_s = after_s
        # By version: the time of its last inference, since when that is so, and whether it has been shrunk since.
        self._seen: dict[ModelVersion, tuple[int, float, bool]] = {}
        self._stopping = threading.Event()

    def start(self) -> None:
        if self._ledger.devices:
            self._ledger.reclaim = self.shrink_all
        if self._ledger.devices and self._after_s:
            threading.Thread(target=self._run, name="trident-idle-memory", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(min(_LOOK_EVERY_S, self._after_s)):
            self.look(time.monotonic())

    def look(self, now_s: float) -> None:
        """Shrink the models that have been idle for long enough, once until they are used again."""
        seen: dict[ModelVersion, tuple[int, float, bool]] = {}
        for version in self._versions():
            if version.memory is None:
                continue
            last = version.statistics.last_inference_ms
            before, since_s, is_shrunk = self._seen.get(version, (-1, now_s, False))
            if last != before or version.in_flight:
                version.memory.returned.clear()
                since_s, is_shrunk = now_s, False
            elif not is_shrunk and now_s - since_s >= self._after_s:
                is_shrunk = True
                self._shrink(version, f"was idle for {self._after_s:g} s")
            seen[version] = last, since_s, is_shrunk
        self._seen = seen

    def shrink_all(self) -> None:
        """Shrink each model that executes nothing at the moment."""
        for version in self._versions():
            if not version.in_flight:
                self._shrink(version, "executes nothing while a load needs memory")

    def _shrink(self, version: ModelVersion, why: str) -> None:
        # A budget counts the system's memory: to shrink each model on the CPU for a load would take longer than that.
        is_counted = self._ledger.budget is not None and version.memory is not None and CPU in version.memory.need
        if version.memory is None or is_counted:
            return
        size = self._ledger.shrink(version.memory, version.shrink)
        if size:
            _log.info("model '%s' version %d %s: it gave back %d bytes", version.name, version.version, why, size)
