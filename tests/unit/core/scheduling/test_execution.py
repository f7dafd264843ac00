from __future__ import annotations

import threading

import pytest

from core.errors import BackendFailed, InvalidRequest
from core.inference.request import InferenceRequest
from core.inference.response import Outputs
from core.inference.response_sender import LATER, Later, ResponseSender
from core.scheduling.execution import run_once
from tests.unit.core.scheduling.echo_instance import EchoInstance
from tests.unit.core.scheduling.later_bench import LaterStub, text


def test_run_once_returns_the_outputs_of_each_request() -> None:
    requests = [InferenceRequest("m", [], id=id) for id in "ab"]
    outputs = run_once(EchoInstance(), requests, lambda request: (1, None))
    assert [tensors[0].array[0] for tensors in outputs] == ["a", "b"]


@pytest.mark.parametrize(("ids", "error"), [("ax", ValueError), ("ae", InvalidRequest)])
def test_run_once_raises_the_error_of_the_batch_or_of_a_request(ids: str, error: type[Exception]) -> None:
    requests = [InferenceRequest("m", [], id=id) for id in ids]
    with pytest.raises(error):
        run_once(EchoInstance(ValueError), requests, lambda request: (1, None))


def test_run_once_waits_for_requests_that_are_answered_later() -> None:
    def answer(request: InferenceRequest, sender: ResponseSender) -> Outputs | Exception | Later:
        def send() -> None:
            sender.send(text("first"))
            sender.send(text("second"))
            sender.send(None, final=True)

        if request.id == "now":
            return text("outcome")
        threading.Thread(target=send).start()
        return LATER

    requests = [InferenceRequest("m", [], id=id) for id in ("now", "later")]
    outputs = run_once(LaterStub(answer=answer), requests, lambda request: (1, None))
    assert [tensors[0].array[0] for tensors in outputs] == [b"outcome", b"first"]


@pytest.mark.parametrize("is_dropped", [False, True])
def test_run_once_raises_what_a_sender_says(is_dropped: bool) -> None:
    def answer(request: InferenceRequest, sender: ResponseSender) -> Outputs | Exception | Later:
        if not is_dropped:
            sender.send(text("first"))
            sender.send(None, error=BackendFailed("no sender is good"), final=True)
        return LATER

    with pytest.raises(BackendFailed, match="sender"):
        run_once(LaterStub(answer=answer), [InferenceRequest("m", [])], lambda request: (1, None))
