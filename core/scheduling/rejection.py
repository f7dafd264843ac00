"""Requests that leave the queue without an execution."""

from __future__ import annotations

from typing import NamedTuple

from core.errors import DeadlineExceeded, RequestCancelled, ServerError, ServerStopping
from core.inference.pending_request import PendingRequest
from core.inference.response import InferenceResponse
from core.observability.model_statistics import ModelStatistics
from core.observability.statistics import FailureReason
from core.scheduling.delivery import Respond, flush


class Rejection(NamedTuple):
    """A request, and the error that answers it."""

    pending: PendingRequest
    error: ServerError

    @property
    def reason(self) -> FailureReason:
        """The reason under which the statistics count it."""
        if isinstance(self.error, RequestCancelled):
            return FailureReason.CANCELED
        return FailureReason.REJECTED if isinstance(self.error, DeadlineExceeded) else FailureReason.OTHER


def reject(rejection: Rejection, statistics: ModelStatistics, respond: Respond, now_ns: int) -> None:
    """Count the rejection and answer its request, on the calling thread."""
    pending, error = rejection
    statistics.record_failure(pending, rejection.reason, now_ns, error.message)
    respond(pending, InferenceResponse.failed(pending.request, error))
    flush((pending,))


def stopping(pending: PendingRequest, model: str, because: str = "") -> ServerStopping:
    """The error for a request that a stopped scheduler does not execute."""
    reason = because or "Server is stopping, scheduler for model has stopped accepting new inference requests"
    return ServerStopping(f"{pending.request.log_prefix}{reason}", model=model)
