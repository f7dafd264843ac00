"""The states of a model version, and the moves between them.

    (new) -> LOADING -> READY -> UNLOADING -> UNAVAILABLE
                    \\-> UNAVAILABLE (the load failed)

A reload makes a new version, beside the old one.
Source: docs/spec/repository.md section 1.4.
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
    ModelState.READY: frozenset({ModelState.UNLOADING}),
    ModelState.UNLOADING: frozenset({ModelState.UNAVAILABLE}),
    ModelState.UNAVAILABLE: frozenset(),
}


class VersionState:
    """The state of one version, with the reason while it is unavailable. The log has every move.

    `origin` is as in `ModelVersion`.
    """

    def __init__(self, model: str, version: int, cause: str, origin: str = "") -> None:
        self._model = model
        self._version = version
        self._cause = cause
        self._origin = origin
        self._since = time.monotonic()
        self.current = ModelState.LOADING
        self.reason = ""

    def move(self, to: ModelState, reason: str = "", *, cause: str = "") -> None:
        """`cause` is logged with this move and the following ones until another is given. The index shows `reason`.

        Raises RuntimeError for a move that the table does not allow, which is a bug.
        """
        if to not in TRANSITIONS[self.current]:
            raise RuntimeError(f"model {self._model}:{self._version} cannot go from {self.current.value} to {to.value}")
        now = time.monotonic()
        self._cause = cause or self._cause
        _log.info(
            "'%s' version %d%s: %s -> %s after %.3f s, cause: %s%s",
            self._model,
            self._version,
            self._origin,
            self.current.value,
            to.value,
            now - self._since,
            self._cause,
            f" ({reason})" if reason else "",
            extra={"model": self._model, "version": self._version},
        )
        self._since = now
        self.current = to
        self.reason = reason
