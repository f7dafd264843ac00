"""The states of a model version, and the moves between them.

    (new) -> LOADING -> READY -> UNLOADING -> UNAVAILABLE -> LOADING …
                    \\-> UNAVAILABLE (the load failed)

Source: spec/repository.md section 1.4.
"""

from __future__ import annotations

import logging
import time
from enum import Enum

_log = logging.getLogger("trident.lifecycle")

UNLOADED = "unloaded"


class ModelState(Enum):
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


TRANSITIONS: dict[ModelState, frozenset[ModelState]] = {
    ModelState.LOADING: frozenset({ModelState.READY, ModelState.UNAVAILABLE}),
    ModelState.READY: frozenset({ModelState.UNLOADING, ModelState.UNAVAILABLE}),
    ModelState.UNLOADING: frozenset({ModelState.UNAVAILABLE}),
    ModelState.UNAVAILABLE: frozenset({ModelState.LOADING}),
}


class VersionState:
    """The state of one version, with the reason while it is unavailable. Moves are logged with cause and duration."""

    def __init__(self, model: str, version: int) -> None:
        self._label = f"{model}:{version}"
        self._since = time.monotonic()
        self.current = ModelState.LOADING
        self.reason = ""

    def move(self, to: ModelState, reason: str = "") -> None:
        """Raises RuntimeError for a move that the table does not allow: a bug, never a client's doing."""
        if to not in TRANSITIONS[self.current]:
            raise RuntimeError(f"model {self._label} cannot go from {self.current.value} to {to.value}")
        now = time.monotonic()
        cause = f" ({reason})" if reason else ""
        _log.debug("%s: %s -> %s after %.3f s%s", self._label, self.current.value, to.value, now - self._since, cause)
        self._since = now
        self.current = to
        self.reason = reason
