"""The rules by which a server whose start has ended is ready."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from enum import Enum
from typing import Protocol


class JudgedModel(Protocol):
    """The state of a model that the rules look at: the versions that serve, why they cannot at the moment, and whether
    the start had to load it.
    """

    @property
    def is_ready(self) -> bool: ...

    @property
    def serving(self) -> Sized: ...

    @property
    def trouble(self) -> str: ...

    @property
    def required(self) -> bool: ...


class Readiness(Enum):
    """The value is that of --strict-readiness.

    SERVING: each model that the start had to load serves. A later load that fails takes nothing away from the versions
    that serve, and so must not take all replicas of a server out of their service at the same moment.
    STRICT: each version of each known model is ready, as in Triton.
    STARTED: the models do not matter.
    """

    SERVING = "auto"
    STRICT = "true"
    STARTED = "false"

    def is_met(self, models: Iterable[JudgedModel]) -> bool:
        if self is Readiness.STARTED:
            return True
        if self is Readiness.STRICT:
            return all(model.is_ready and not model.trouble for model in models)
        return all(not model.required or (model.serving and not model.trouble) for model in models)
