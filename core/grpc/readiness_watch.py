"""Tells calls when the readiness of the server changes.

Source: grpc.health.v1's `health.proto`.
"""

from __future__ import annotations

from typing import Protocol

from core.engine.protocol import Engine
from core.lifecycle.serving_phase import Phase
from core.waiting.deadlines import Deadlines

_LOOK_S = 0.25


class Watcher(Protocol):
    """It must be hashable."""

    def tell(self, ready: bool) -> None:
        """The server is ready, or not."""

    def tell_exit(self) -> None:
        """The server stops, and tells nothing more."""


class ReadinessWatch:
    """Looks at the engine four times a second while somebody watches. On the hub's thread."""

    def __init__(self, engine: Engine, deadlines: Deadlines) -> None:
        self._engine = engine
        self._deadlines = deadlines
        self._watchers: dict[Watcher, None] = {}
        self._is_looking = False

    def add(self, watcher: Watcher) -> None:
        """Tell it the readiness now, and each change."""
        self._watchers[watcher] = None
        self._tell(watcher)
        self._look_later()

    def remove(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)

    def expire(self) -> None:
        """Look."""
        self._is_looking = False
        for watcher in list(self._watchers):
            self._tell(watcher)
        self._look_later()

    def _tell(self, watcher: Watcher) -> None:
        ready = self._engine.is_ready()
        if not ready and self._engine.phase().name == Phase.EXITING:
            self.remove(watcher)
            watcher.tell_exit()
        else:
            watcher.tell(ready)

    def _look_later(self) -> None:
        if self._watchers and not self._is_looking:
            self._is_looking = True
            self._deadlines.add(_LOOK_S, self)
