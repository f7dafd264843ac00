"""The rules by which a server whose start has ended is ready."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.lifecycle.model import Model


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

    def is_met(self, models: Iterable[Model]) -> bool:
        if self is Readiness.STARTED:
            return True
        if self is Readiness.STRICT:
            return all(model.is_ready for model in models)
        return all(model.serving or not model.required for model in models)
