from __future__ import annotations

from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest


def test_cancel_tells_the_engine_that_asked_for_it() -> None:
    told: list[PendingRequest] = []
    pending = PendingRequest(InferenceRequest("m", []), lambda response: None)
    pending.cancel()
    assert pending.cancelled
    pending.on_cancel = told.append
    pending.cancel()
    assert told == [pending]
