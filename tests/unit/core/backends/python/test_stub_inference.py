"""Requests and responses in a stub process: their fields, their checks, the order of responses; other models."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import numpy as np
import pytest
from trident_stub.inference import (
    InferenceRequest,
    InferenceResponse,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
)
from trident_stub.model import TritonModelException, text_of
from trident_stub.server import unload_model
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


GIVEN: dict[type, dict[str, Any]] = {
    InferenceRequest: {"inputs": [T], "requested_output_names": ["A"], "model_name": "M"},
    InferenceResponse: {},
}


@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        (InferenceRequest, {"inputs": None}, "'inputs' must be a list of Tensor objects"),
        (InferenceRequest, {"inputs": [np.zeros(1)]}, "'inputs' must be Tensor objects, not ndarray"),
        (InferenceRequest, {"requested_output_names": b"A"}, "'requested_output_names' must be a list of str"),
        (InferenceRequest, {"requested_output_names": [1]}, "each of 'requested_output_names' must be a str, not int"),
        (InferenceRequest, {"model_name": None}, "'model_name' must be a str, not NoneType"),
        (InferenceRequest, {"correlation_id": None}, "'correlation_id', if not an int, must be a str, not NoneType"),
        (InferenceRequest, {"model_version": "1"}, "'model_version' must be an int, not str"),
        (InferenceRequest, {"preferred_memory": None}, "'preferred_memory' must be a PreferredMemory"),
        (InferenceResponse, {"output_tensors": [np.zeros(1)]}, "must be Tensor objects, not ndarray"),
        (InferenceResponse, {"error": "text"}, "must be a TritonError, not str"),
    ],
)
def test_arguments_of_another_type_are_named(kind: Any, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError) as caught:
        kind(**{**GIVEN[kind], **arguments})
    assert text in str(caught.value)


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


RESPONSE = InferenceResponse([A])
CLOSED = "Unable to send response. Response sender has been closed."
SECOND = "Unable to send response. Non-decoupled model cannot send more than one response."
EARLY = "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
# Sent by a model that is not decoupled (response, flags), and how the last of it ends.
CASES: list[tuple[list[tuple[InferenceResponse | None, int]], str | None]] = [
    ([(RESPONSE, 1)], None),
    ([(RESPONSE, 0), (None, 1)], None),
    ([(RESPONSE, 0), (RESPONSE, 0)], SECOND),
    ([(RESPONSE, 0), (RESPONSE, 1)], SECOND),
    ([(RESPONSE, 1), (RESPONSE, 1)], SECOND),
    ([(RESPONSE, 1), (None, 1)], CLOSED),
    ([(None, 1)], EARLY),
]


def arrived() -> InferenceRequest:
    return InferenceRequest._arrived(7, [], ("A",))


@pytest.mark.parametrize(("sends", "refusal"), CASES)
def test_responses_are_sent_in_an_allowed_order_only(
    memory_server: MemoryServer, sends: list[tuple[InferenceResponse | None, int]], refusal: str | None
) -> None:
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


def test_dependents_are_unloaded_if_asked_for(memory_server: MemoryServer) -> None:
    unload_model("m", unload_dependents=True)
    assert memory_server.calls == [("unload_model", {"model_name": "m", "unload_dependents": True})]


# --- texts in bytes


BYTES = np.array(["ä".encode()], np.object_)[0]


def test_bytes_are_accepted_as_text() -> None:
    assert [text_of(each, "it") for each in ("ä", np.str_("ä"), BYTES, np.bytes_(BYTES), bytearray(BYTES))] == ["ä"] * 5
    with pytest.raises(ValueError, match=r"it must be text, and the bytes b'\\xff' are not UTF-8: invalid start byte"):
        text_of(b"\xff", "it")
    with pytest.raises(TypeError, match="it must be a str, not int"):
        text_of(1, "it")
