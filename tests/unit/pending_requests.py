"""Pending requests for tests of everything that stands between an engine's door and a backend; a request's fields."""

from __future__ import annotations

from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OnResponse


def ignore(response: InferenceResponse) -> None:
    """A callback of a caller that does not look at its responses."""


def pending_request(
    id: str = "",
    *,
    on_response: OnResponse = ignore,
    priority: int = 0,
    timeout_us: int = 0,
    batch_size: int = 1,
    start_ns: int = 0,
    enqueue_ns: int = 0,
) -> PendingRequest:
    """A request for the model `m` without inputs, as it is after validation."""
    request = InferenceRequest("m", [], id=id, priority=priority, timeout_us=timeout_us)
    pending = PendingRequest(request, on_response)
    pending.batch_size = batch_size
    pending.start_ns = start_ns
    pending.enqueue_ns = enqueue_ns
    return pending


# The fields of a request, on both builds: a compiled class has no `__slots__`.
_DERIVED = ("has_many_strings", "log_prefix", "may_be_passed", "nbytes")

FIELDS = [
    name
    for name in dir(InferenceRequest)
    if not name.startswith("_") and name not in _DERIVED and not callable(getattr(InferenceRequest, name))
]
