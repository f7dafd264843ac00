"""Requests and responses in a stub process: their fields, their checks, the order of responses; other models."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from trident_stub.inference import (
    InferenceRequest,
    InferenceResponse,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
    ResponseIterator,
)
from trident_stub.model import TritonModelException, running_model, text_of
from trident_stub.server import is_model_ready, load_model, unload_model
from trident_stub.tensor import Tensor

from tests.unit.core.backends.python.conftest import MemoryServer, MemoryStream
from tests.waiting import until

T = Tensor("T", np.zeros(1))


def test_request_fields_are_stored() -> None:
    request = InferenceRequest(
        "r",
        12,
        [T],
        ["A"],
        "other",
        2,
        1,
        1000,
        PreferredMemory(MemoryType.TRITONSERVER_MEMORY_CPU),
        InferenceTrace("{}", 7),
        {"p": True},
    )
    assert request._description() == {
        "id": "r",
        "correlation_id": 12,
        "model_name": "other",
        "model_version": 2,
        "flags": 1,
        "timeout": 1000,
        "trace": [7, "{}"],
        "parameters": {"p": True},
    }
    assert request.inputs() == [T]
    assert request.requested_output_names() == {"A"}
    assert not request.is_cancelled()


def test_request_takes_numbers_of_numpy_and_any_iterable_of_names() -> None:
    request = InferenceRequest(
        inputs=(T,), requested_output_names=(name for name in "AB"), model_name="m", flags=np.uint32(1)
    )
    assert request.inputs() == [T]
    assert request.requested_output_names() == {"A", "B"}
    assert type(request.flags()) is int


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"inputs": None}, TypeError, "'inputs' must be a list of Tensor objects"),
        ({"inputs": [np.zeros(1)]}, TypeError, "'inputs' must be Tensor objects, not ndarray"),
        ({"inputs": [None], "request_id": "R"}, TritonModelException, "'R' and model name 'M' should not be empty."),
        ({"requested_output_names": b"A"}, TypeError, "'requested_output_names' must be a list of str"),
        ({"requested_output_names": [1]}, TypeError, "each of 'requested_output_names' must be a str, not int"),
        ({"model_name": None}, TypeError, "'model_name' must be a str, not NoneType"),
        ({"correlation_id": None}, TypeError, "'correlation_id', if not an int, must be a str, not NoneType"),
        ({"model_version": "1"}, TypeError, "'model_version' must be an int, not str"),
        ({"preferred_memory": None}, TypeError, "'preferred_memory' must be a PreferredMemory"),
        ({"parameters": 1}, TritonModelException, "Expect dict, got <class 'int'>"),
        ({"parameters": {"a": 0.5}}, TritonModelException, "type bool/int/str, found type <class 'float'>"),
    ],
)
def test_invalid_request_of_a_model_is_refused(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        InferenceRequest(**{"inputs": [T], "requested_output_names": ["A"], "model_name": "M", **arguments})
    assert text in str(caught.value)


@pytest.mark.parametrize("arguments", [(None,), ("GPU",), (MemoryType.TRITONSERVER_MEMORY_GPU, None)])
def test_invalid_preferred_memory_is_refused(arguments: Any) -> None:
    with pytest.raises(TypeError, match="PreferredMemory"):
        PreferredMemory(*arguments)


# --- responses, and their senders


A, B = Tensor("A", np.zeros(1)), Tensor("B", np.zeros(1))


@pytest.mark.usefixtures("memory_server")
def test_outputs_that_were_not_requested_are_dropped() -> None:
    response = InferenceResponse([A, B], parameters={"p": 1})
    assert response._with_outputs(("B", "A", "C")) is response
    kept = response._with_outputs(("B",))
    assert kept.output_tensors() == [B]
    unknown = Tensor("not configured", np.zeros(1))
    assert InferenceResponse([A, B, unknown])._with_outputs(("B",)).output_tensors() == [B, unknown]
    assert kept.parameters() == response.parameters()
    assert response.output_tensors() == [A, B]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"output_tensors": [None]}, TritonModelException, "Output tensor for inference response should not be empty."),
        ({"output_tensors": [np.zeros(1)]}, TypeError, "must be Tensor objects, not ndarray"),
        ({"error": "text"}, TypeError, "must be a TritonError, not str"),
        ({"parameters": []}, TritonModelException, ", got <class 'list'>"),
        ({"parameters": {1: "int key"}}, TritonModelException, "keys to have type str, found type <class 'int'>"),
    ],
)
def test_invalid_response_is_refused(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        InferenceResponse(**arguments)
    assert text in str(caught.value)


RESPONSE = InferenceResponse([Tensor("A", np.zeros(1))])
CLOSED = "Unable to send response. Response sender has been closed."
SECOND = "Unable to send response. Non-decoupled model cannot send more than one response."
EARLY = "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
# Whether the model is decoupled, what is sent (response, flags), and how the last of it ends.
CASES: list[tuple[bool, list[tuple[InferenceResponse | None, int]], str | None]] = [
    (True, [(RESPONSE, 0), (RESPONSE, 0), (None, 1)], None),
    (True, [(None, 1)], None),
    (True, [(RESPONSE, 1), (RESPONSE, 0)], CLOSED),
    (True, [(None, 1), (None, 1)], CLOSED),
    (True, [(RESPONSE, 2)], "Unable to send response. Unsupported flag provided."),
    (True, [(RESPONSE, 4)], "Unable to send response. Unsupported flag provided."),
    (True, [(None, 0)], "Inference Response object must be provided when the response flags is set to zero."),
    (False, [(RESPONSE, 1)], None),
    (False, [(RESPONSE, 0), (None, 1)], None),
    (False, [(RESPONSE, 0), (RESPONSE, 0)], SECOND),
    (False, [(RESPONSE, 0), (RESPONSE, 1)], SECOND),
    (False, [(RESPONSE, 1), (RESPONSE, 1)], SECOND),
    (False, [(RESPONSE, 1), (None, 1)], CLOSED),
    (False, [(None, 1)], EARLY),
]


def arrived() -> InferenceRequest:
    return InferenceRequest._arrived(7, [], ("A",))


@pytest.mark.parametrize(("decoupled", "sends", "refusal"), CASES)
def test_responses_are_sent_in_an_allowed_order_only(
    memory_server: MemoryServer, decoupled: bool, sends: list[tuple[InferenceResponse | None, int]], refusal: str | None
) -> None:
    running_model().decoupled = decoupled
    sender = arrived().get_response_sender()
    good = sends if refusal is None else sends[:-1]
    for response, flags in good:
        sender.send(response, flags=flags)
    if refusal is not None:
        with pytest.raises(TritonModelException) as caught:
            sender.send(*sends[-1])
        assert str(caught.value) == refusal
    assert memory_server.sent == [(7, response, flags == 1) for response, flags in good]
    sender._close()


def test_request_for_another_model_cannot_be_answered(memory_server: MemoryServer) -> None:
    sender = InferenceRequest(inputs=[], requested_output_names=[], model_name="other").get_response_sender()
    with pytest.raises(TritonModelException, match="has no reference to the decoupled state of the model"):
        sender.send(RESPONSE, 1)
    assert not sender.is_cancelled()


@pytest.mark.parametrize("decoupled", [True, False])
def test_sender_that_is_dropped_ends_its_request(memory_server: MemoryServer, decoupled: bool) -> None:
    running_model().decoupled = decoupled
    request = arrived()
    request.get_response_sender()
    del request
    gc.collect()
    until(lambda: memory_server.sent, "the end of the request")
    ((number, response, final),) = memory_server.sent
    assert (number, final) == (7, True)
    assert response is not None
    error = response.error()
    assert error is not None
    assert error.message() == "the model dropped its response sender before the final response"


def test_sender_that_has_answered_is_dropped_without_an_error(memory_server: MemoryServer) -> None:
    arrived().get_response_sender().send(RESPONSE)
    gc.collect()
    until(lambda: len(memory_server.sent) == 2, "the end of the request")
    assert memory_server.sent == [(7, RESPONSE, False), (7, None, True)]


# --- requests to other models


TWO = [InferenceResponse([Tensor("A", np.array([number]))]) for number in range(2)]


@pytest.fixture
def request_() -> InferenceRequest:
    return InferenceRequest(inputs=[], requested_output_names=["A"], model_name="other")


def test_decoupled_must_be_a_bool(request_: InferenceRequest) -> None:
    with pytest.raises(TypeError, match="must be a bool, not None"):
        request_.exec(None)  # type: ignore[arg-type]


def test_responses_can_be_iterated_again(memory_server: MemoryServer, request_: InferenceRequest) -> None:
    memory_server.streams.append(MemoryStream(*TWO, None))
    responses = request_.exec(decoupled=True)
    assert isinstance(responses, ResponseIterator)
    assert memory_server.asked == [(request_, True)]
    for _ in range(2):
        assert list(responses) == TWO


def test_requests_are_sent_before_they_are_awaited(memory_server: MemoryServer, request_: InferenceRequest) -> None:
    streams = [MemoryStream(), MemoryStream()]
    memory_server.streams += streams

    async def both() -> list[Any]:
        futures = [request_.async_exec(), request_.async_exec()]
        assert len(memory_server.asked) == 2
        # From another thread, as responses come.
        for stream, response in zip(streams, TWO, strict=True):
            threading.Thread(target=stream.put, args=(response,)).start()
        return await asyncio.gather(*futures)

    assert asyncio.run(both()) == TWO


def test_abandoned_wait_cancels_its_request(memory_server: MemoryServer, request_: InferenceRequest) -> None:
    stream = MemoryStream()
    memory_server.streams.append(stream)

    async def give_up() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(request_.async_exec(), 0.01)
        stream.put(TWO[0])

    asyncio.run(give_up())
    assert stream.cancelled


def test_ended_loop_cancels_its_requests(memory_server: MemoryServer, request_: InferenceRequest) -> None:
    stream = MemoryStream()
    memory_server.streams.append(stream)

    async def forget() -> None:
        request_.async_exec()

    asyncio.run(forget())
    stream.put(TWO[0])
    until(lambda: stream.cancelled, "the cancellation")


def test_model_control_calls_have_their_fields(memory_server: MemoryServer) -> None:
    memory_server.answers["is_model_ready"] = {"ready": True}
    load_model("m")
    load_model(model_name="m", config="{}", files={"file:1/model.py": b"\xff"})
    unload_model("m")
    unload_model("m", unload_dependents=True)
    assert is_model_ready("m")
    assert is_model_ready(model_name="m", model_version="2")
    assert memory_server.calls == [
        ("load_model", {"model_name": "m", "config": "", "files": {}}),
        ("load_model", {"model_name": "m", "config": "{}", "files": {"file:1/model.py": "/w=="}}),
        ("unload_model", {"model_name": "m", "unload_dependents": False}),
        ("unload_model", {"model_name": "m", "unload_dependents": True}),
        ("is_model_ready", {"model_name": "m", "model_version": ""}),
        ("is_model_ready", {"model_name": "m", "model_version": "2"}),
    ]


@pytest.mark.parametrize(
    ("call", "name", "prefix"),
    [
        (load_model, "load_model", "Failed to load model: "),
        (unload_model, "unload_model", "Failed to unload model: "),
        (is_model_ready, "is_model_ready", "Failed to check model readiness: "),
    ],
)
def test_refused_calls_have_tritons_prefix(
    memory_server: MemoryServer, call: Callable[[str], Any], name: str, prefix: str
) -> None:
    memory_server.refusals[name] = "why"
    with pytest.raises(TritonModelException) as caught:
        call("m")
    assert str(caught.value) == f"{prefix}why"


# --- texts in bytes


BYTES = np.array(["ä".encode()], np.object_)[0]


def test_bytes_are_accepted_as_text() -> None:
    assert [text_of(each, "it") for each in ("ä", np.str_("ä"), BYTES, np.bytes_(BYTES), bytearray(BYTES))] == ["ä"] * 5
    with pytest.raises(ValueError, match=r"it must be text, and the bytes b'\\xff' are not UTF-8: invalid start byte"):
        text_of(b"\xff", "it")
    with pytest.raises(TypeError, match="it must be a str, not int"):
        text_of(1, "it")


def test_request_accepts_bytes_as_text() -> None:
    request = pb_utils.InferenceRequest(
        request_id=BYTES, correlation_id=BYTES, model_name=BYTES, requested_output_names=[BYTES], inputs=[]
    )
    assert (request.request_id(), request.correlation_id(), request.requested_output_names()) == ("ä", "ä", {"ä"})
    assert request._description()["model_name"] == "ä"
