"""ModelHost: a model's lifecycle and every kind of result of `execute`."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
from trident_stub.inference import InferenceRequest, InferenceResponse
from trident_stub.model import TritonError

from tests.unit.core.backends.python.conftest import MakeHost, MemoryServer
from tests.waiting import until

DECOUPLED = {"model_transaction_policy": {"decoupled": True}}
PREFIX = "Failed to process the request(s) for model 'model_0_0', message: "


def model(execute: str, kind: str = "def") -> str:
    """A model whose `execute` has this body; `answers` are as many responses as there are requests."""
    lines = "".join(f"                    {line}\n" for line in execute.splitlines())
    return f"""
        import asyncio, sys, threading, triton_python_backend_utils as pb_utils
        class TritonPythonModel:
            {kind} execute(self, requests):
                answers = [pb_utils.InferenceResponse([]) for _ in requests]
                if True:
{lines}
    """


def batch(count: int = 2) -> list[InferenceRequest]:
    return [InferenceRequest._arrived(number, [], ("A", "B")) for number in range(count)]


def error_of(response: InferenceResponse | None) -> tuple[str, int]:
    assert response is not None
    error = response.error()
    assert error is not None
    return error.message(), error.code()


@pytest.mark.parametrize(
    ("execute", "text"),
    [
        ("return [answers[0], 'text']", "in the execute function return list, found type '<class 'str'>'."),
        ("requests[1].set_release_flags(2)\nreturn answers", "for reschduled request, found type "),
    ],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_wrong_returns_are_the_error_of_every_request(begin: MakeHost, kind: str, execute: str, text: str) -> None:
    host = begin(model(execute, kind))
    requests = batch()
    responses = host.execute(requests)
    for message, code in map(error_of, responses):
        assert (message.startswith(PREFIX), text in message, code) == (True, True, TritonError.INTERNAL)
    for request in requests:
        with pytest.raises(Exception, match="Unable to send response"):
            request.get_response_sender().send(InferenceResponse([]), 1)


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("second", ["requests[1].get_response_sender().send(answers[1])", "return answers"])
def test_first_of_two_responses_is_delivered(
    begin: MakeHost, memory_server: MemoryServer, kind: str, second: str
) -> None:
    host = begin(model(f"requests[1].get_response_sender().send(answers[1])\n{second}", kind))
    text = "Unable to send response. Non-decoupled model cannot send more than one response."
    other, twice = host.execute(batch())
    assert text in error_of(other)[0]
    assert twice is None
    assert [(number, response is None, final) for number, response, final in memory_server.sent] == [
        (1, False, False),
        (1, True, True),
    ]
    assert [text in line for _, line, _, _ in memory_server.lines] == [True]


def test_request_that_was_answered_is_not_answered_again(begin: MakeHost, memory_server: MemoryServer) -> None:
    host = begin(model("requests[0].get_response_sender().send(answers[0], 1)\nraise ValueError"))
    first, second = host.execute(batch())
    assert first is None
    assert error_of(second)[0].startswith(f"{PREFIX}ValueError: <EMPTY MESSAGE>\n\nAt:\n")
    assert len(memory_server.sent) == 1


def test_rescheduled_request_is_not_answered(begin: MakeHost) -> None:
    host = begin(model("requests[0].set_release_flags(2)\nreturn [None, answers[1]]"))
    requests = batch()
    first, second = host.execute(requests)
    assert first is None
    assert second is not None
    assert [host.is_rescheduled(request) for request in requests] == [True, False]


def test_rescheduled_request_keeps_its_responses_without_a_final_one(
    begin: MakeHost, memory_server: MemoryServer
) -> None:
    """Its sender is closed: the sender of the next execution sends the final response."""
    lines = ["sender = requests[0].get_response_sender()", "sender.send(answers[0])", "self.sender = sender"]
    host = begin(model("\n".join([*lines, "requests[0].set_release_flags(2)", "return None"])), **DECOUPLED)
    (request,) = batch(1)
    assert host.execute([request]) == [None]
    assert host.is_rescheduled(request)
    with pytest.raises(Exception, match="Response sender has been closed"):
        host._instance.sender.send(InferenceResponse([]))
    del request, host._instance.sender
    gc.collect()
    assert [final for _, _, final in memory_server.sent] == [False]


def test_rescheduled_request_fails_with_its_batch(begin: MakeHost) -> None:
    host = begin(model("requests[0].set_release_flags(2)\nreturn [None, 'text']"))
    requests = batch()
    assert all(error_of(response)[0].startswith(PREFIX) for response in host.execute(requests))
    assert not host.is_rescheduled(requests[0])


@pytest.mark.parametrize("last", ["raise ValueError('why')", "sys.exit(1)", "return answers"])
def test_failed_coroutine_of_a_decoupled_model_is_an_error_of_its_requests(
    begin: MakeHost, memory_server: MemoryServer, last: str
) -> None:
    host = begin(model(f"await asyncio.sleep(0)\n{last}", "async def"), **DECOUPLED)
    for _ in range(2):
        memory_server.something_was_sent.clear()
        assert list(host.execute(batch(1))) == [None]
        assert memory_server.something_was_sent.wait(60)
    number, response, final = memory_server.sent[0]
    assert (number, final) == (0, True)
    assert error_of(response)[0].startswith(PREFIX)
    assert memory_server.lines[0][:2] == (2, error_of(response)[0].removeprefix(PREFIX))


def test_coroutine_cannot_reschedule_a_request(begin: MakeHost, memory_server: MemoryServer) -> None:
    lines = [
        "requests[0].get_response_sender().send(answers[0], 1)",
        "requests[1].get_response_sender().send(answers[1])",
    ]
    lines += [f"requests[{index}].set_release_flags(2)" for index in range(3)]
    host = begin(model("\n".join(lines), "async def"), **DECOUPLED)
    requests = batch(4)
    assert list(host.execute(requests)) == [None] * 4
    assert not any(map(host.is_rescheduled, requests))
    del requests
    until(lambda: sum(final for _, _, final in memory_server.sent) == 4)
    ends = {number: response for number, response, final in memory_server.sent if final}
    assert ends[0] is not None
    assert not ends[0].has_error()
    for number in (1, 2):
        assert error_of(ends[number])[0].startswith("the request was given back after `execute` had returned")
    assert error_of(ends[3])[0].startswith("execute returned None, and the model sent no response")


def test_request_can_be_rescheduled_before_a_coroutine_begins(begin: MakeHost, memory_server: MemoryServer) -> None:
    source = """
        class TritonPythonModel:
            def execute(self, requests):
                requests[0].set_release_flags(2)
                return self.go(requests[1])
            async def go(self, request):
                request.get_response_sender().send(flags=1)
    """
    host = begin(source, **DECOUPLED)
    requests = batch(2)
    assert list(host.execute(requests)) == [None] * 2
    assert [host.is_rescheduled(request) for request in requests] == [True, False]
    until(lambda: memory_server.sent)
    assert [number for number, _, _ in memory_server.sent] == [1]


@pytest.mark.parametrize(
    ("kind", "execute"),
    [
        ("async def", "await asyncio.sleep(0)\nfor request in requests: request.get_response_sender()"),
        (
            "async def",
            "await asyncio.sleep(0)\nfor request in requests: request.get_response_sender().send(answers[0])",
        ),
        ("def", "for request in requests: request.get_response_sender()"),
        ("def", "threading.Thread(target=lambda: [request.get_response_sender() for request in requests]).start()"),
        (
            "def",
            "def ask(sender):\n    yield sender\nfor request in requests: next(ask(request.get_response_sender()))",
        ),
    ],
)
def test_request_without_a_final_flag_ends_with_an_error(
    begin: MakeHost, memory_server: MemoryServer, kind: str, execute: str
) -> None:
    host = begin(model(execute, kind), **DECOUPLED)
    host.execute(batch(2))
    until(lambda: sum(final for _, _, final in memory_server.sent) == 2)
    for _, response, final in memory_server.sent:
        if final:
            assert error_of(response)[0] == "the model dropped its response sender before the final response"


def test_coroutines_end_with_the_model(begin: MakeHost, memory_server: MemoryServer) -> None:
    host = begin(model("await asyncio.sleep(1000)", "async def"), **DECOUPLED)
    host.execute(batch(1))
    host.finalize()
    assert not any(thread.name == "model event loop" for thread in threading.enumerate())
    assert error_of(memory_server.sent[0][1])[0] == PREFIX + "CancelledError: <EMPTY MESSAGE>"


def test_exception_of_finalize_is_logged(begin: MakeHost, memory_server: MemoryServer, tmp_path: Path) -> None:
    host = begin("class TritonPythonModel:\n    def finalize(self):\n        raise ValueError('why')")
    host.finalize()
    text = f"ValueError: why\n\nAt:\n  {tmp_path}/1/model.py(3): finalize\n"
    assert memory_server.lines == [(2, text, "model.py", 0)]


def test_metrics_that_a_batch_dropped_are_deleted(begin: MakeHost, memory_server: MemoryServer) -> None:
    memory_server.answers = {"metric_family": {"family": 3}, "metric_create": {"metric": 4}}
    host = begin(model("pb_utils.MetricFamily('f', 'd', pb_utils.MetricFamily.GAUGE).Metric()\nreturn answers"))
    host.execute(batch())
    assert memory_server.calls[-1] == ("metric_delete", {"metric": 4})
