"""What an instance takes from the queue at a time."""

from __future__ import annotations

from typing import NamedTuple

from core.errors import DeadlineExceeded, RequestCancelled, ServerError, ServerStopping
from core.inference.pending_request import PendingRequest
from core.observability.statistics import FailureReason
from core.scheduling.queue import Rejection


class Work(NamedTuple):
    """A batch to execute, perhaps empty, and requests to answer with an error."""

    batch: list[PendingRequest]
    rejections: list[Rejection]


def reason_of(error: ServerError) -> FailureReason:
    """How a request that never ran is counted."""
    if isinstance(error, RequestCancelled):
        return FailureReason.CANCELED
    return FailureReason.REJECTED if isinstance(error, DeadlineExceeded) else FailureReason.OTHER


def stopping(pending: PendingRequest, model: str) -> ServerStopping:
    """The answer to a request for which it is too late."""
    reason = "Server is stopping, scheduler for model has stopped accepting new inference requests"
    return ServerStopping(f"{pending.request.log_prefix}{reason}", model=model)
