"""Callbacks that get the responses, and the flush that follows a batch."""

from __future__ import annotations

import pytest

from tests.unit.pending_requests import pending_request
from trident.core.inference.response import InferenceResponse
from trident.core.scheduling.queue import deliver, flush_callers


def test_the_callback_gets_the_response() -> None:
    answers: list[InferenceResponse] = []
    deliver(pending_request(on_response=answers.append), response := InferenceResponse("m", 1, []))
    assert answers == [response]


def test_a_failing_callback_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    def on_response(response: InferenceResponse) -> None:
        raise RuntimeError("the socket is gone")

    deliver(pending_request(on_response=on_response), InferenceResponse("m", 1, []))
    assert "the socket is gone" in caplog.text


class FrontEnd:
    """A caller that counts its flushes."""

    def __init__(self) -> None:
        self.flushes = 0

    def flush(self) -> None:
        self.flushes += 1


def test_flush_calls_each_caller_of_a_batch_once() -> None:
    requests = [pending_request() for _ in range(9)]
    first, second = FrontEnd(), FrontEnd()
    tell_first, tell_second = first.flush, second.flush
    for number, request in enumerate(requests):
        request.flush = (tell_first, tell_second, None)[number % 3]
    flush_callers(requests)
    assert (first.flushes, second.flushes) == (1, 1)


def test_flush_skips_requests_without_one() -> None:
    flush_callers([pending_request()])
    flush_callers([])
