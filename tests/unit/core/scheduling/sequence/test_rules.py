from __future__ import annotations

import pytest

from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.scheduling.sequence_batcher import place_problem

MISSING = (
    "inference request for sequence 7 to model 'm' must specify the START flag on the first request of the sequence"
)
STOPPING = (
    "[request id: <id_unknown>] Server is stopping, scheduler for model has stopped accepting new inference requests"
)


@pytest.mark.parametrize(
    ("start", "is_open", "is_stopped", "problem"),
    [
        (True, False, False, None),
        (True, True, False, None),
        (False, True, False, None),
        (False, False, False, MISSING),
        (True, False, True, STOPPING),
        (True, True, True, STOPPING),
        (False, True, True, None),
        (False, False, True, MISSING),
    ],
)
def test_what_becomes_of_a_request(start: bool, is_open: bool, is_stopped: bool, problem: str | None) -> None:
    request = InferenceRequest("m", [], correlation_id=7, sequence_start=start)
    found = place_problem(PendingRequest(request, lambda _: None), is_open=is_open, is_stopped=is_stopped)
    assert (None if found is None else found.message) == problem
