"""What becomes of an arriving request: pure functions of the request and of what is known of its sequence.

Source: docs/spec/schedulers.md section 3.4, "Request rules".
"""

from __future__ import annotations

from core.errors import InvalidRequest, ServerError
from core.inference.pending_request import PendingRequest
from core.inference.request import InferenceRequest
from core.scheduling.rejection import stopping


def form_problem(pending: PendingRequest) -> InvalidRequest:
    """Why the sequence batcher cannot take `pending`, which has several items or no correlation id."""
    model = pending.request.model_name
    if pending.batch_size > 1:
        return InvalidRequest(
            f"inference request to model '{model}' must specify batch-size 1 due to requirements of sequence batcher",
            hint="send the items of a sequence in requests of their own",
        )
    return InvalidRequest(
        f"inference request to model '{model}' must specify a non-zero or non-empty correlation ID",
        hint="set sequence_id",
    )


def place_problem(pending: PendingRequest, *, is_open: bool, is_stopped: bool) -> ServerError | None:
    """Why `pending` cannot join or begin its sequence; None if it can.

    `is_open`: its sequence began and did not end. `is_stopped`: no sequence begins any more.
    """
    request = pending.request
    if is_stopped and request.sequence_start:
        return stopping(pending, request.model_name)
    if not (is_open or request.sequence_start):
        return start_missing(request)
    return None


def start_missing(request: InferenceRequest) -> InvalidRequest:
    """The error of a request whose sequence is not known."""
    return InvalidRequest(
        f"inference request for sequence {request.correlation_id} to model '{request.model_name}' must specify the "
        "START flag on the first request of the sequence",
        hint="a sequence also ends when it is idle for max_sequence_idle_microseconds, when its model is reloaded, and "
        "when the process of its instance ends",
    )
