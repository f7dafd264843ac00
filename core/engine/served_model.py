"""A model version as the engine gives it to a front end."""

from __future__ import annotations

from typing import Protocol

from core.config.model_spec import ModelSpec
from core.inference.pending_request import PendingRequest
from core.inference.response import AnswerAtHand


class ServedModel(Protocol):
    """The version that `Engine.model` found. Look it up again for each request: a reload replaces it.

    `spec` holds what a codec needs to know. `handover` is how many requests that arrive at the same moment a front end
    submits in a row.
    """

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def handover(self) -> int: ...

    @property
    def answer_at_hand(self) -> AnswerAtHand | None:
        """Answers requests from the response cache of this process, without a wait. Any thread; never raises.

        None for a model without one; decided when it is loaded.
        """
        ...

    def submit(self, pending: PendingRequest) -> None:
        """Run a request that names this model and the version that was asked for. Any thread; does not block.

        Never raises: an error is a response. `on_response` may be called before this returns. If the version was
        unloaded after it was found, the version that the request's name and number now mean runs the request.
        """
        ...
