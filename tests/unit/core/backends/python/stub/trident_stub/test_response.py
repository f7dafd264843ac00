"""InferenceResponse: what it keeps and refuses. InferenceResponseSender: what may be sent when, decoupled or not."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from trident_stub.errors import TritonModelException
from trident_stub.model import running_model
from trident_stub.request import InferenceRequest
from trident_stub.response import InferenceResponse
from trident_stub.tensor import Tensor

from tests.unit.core.backends.python.stub.trident_stub.memory_server import MemoryServer
from tests.waiting import until

A, B = Tensor("A", np.zeros(1)), Tensor("B", np.zeros(1))


@pytest.mark.usefixtures("memory_server")
def test_what_was_not_requested_is_dropped() -> None:
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
        ({"output_tensors": None}, TypeError, "NoneType"),
        ({"output_tensors": [None]}, TritonModelException, "Output tensor for inference response should not be empty."),
        ({"output_tensors": [np.zeros(1)]}, TypeError, "must be Tensor objects, not ndarray"),
        ({"error": "text"}, TypeError, "must be a TritonError, not str"),
        ({"parameters": []}, TritonModelException, ", got <class 'list'>"),
        (
            {"parameters": {1: "int key"}},
            TritonModelException,
            "Expect parameters keys to have type str, found type <class 'int'>",
        ),
        (
            {"parameters": {"a": 0.5}},
            TritonModelException,
            "Expect parameters values to have type bool/int/str, found type <class 'float'>",
        ),
        (
            {"parameters": {"a": None}},
            TritonModelException,
            "Expect parameters values to have type bool/int/str, found type <class 'NoneType'>",
        ),
    ],
)
def test_a_response_that_is_refused(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
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
    (True, [(RESPONSE, -1)], "Unable to send response. Unsupported flag provided."),
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
def test_the_order_of_responses(
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


@pytest.mark.parametrize("arguments", [("text",), (RESPONSE, None), (RESPONSE, "1")])
def test_what_cannot_be_sent(memory_server: MemoryServer, arguments: Any) -> None:
    sender = arrived().get_response_sender()
    with pytest.raises(TypeError, match="send"):
        sender.send(*arguments)
    assert memory_server.sent == []
    sender._close()


def test_a_request_has_one_sender() -> None:
    sender = InferenceRequest(inputs=[], requested_output_names=[], model_name="other")
    assert sender.get_response_sender() is sender.get_response_sender()


def test_nobody_answers_a_request_of_the_model(memory_server: MemoryServer) -> None:
    sender = InferenceRequest(inputs=[], requested_output_names=[], model_name="other").get_response_sender()
    with pytest.raises(TritonModelException, match="has no reference to the decoupled state of the model"):
        sender.send(RESPONSE, 1)
    assert not sender.is_cancelled()


@pytest.mark.parametrize("decoupled", [True, False])
def test_a_sender_that_is_dropped_ends_its_request(memory_server: MemoryServer, decoupled: bool) -> None:
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


def test_a_sender_that_has_answered_is_dropped_without_an_error(memory_server: MemoryServer) -> None:
    arrived().get_response_sender().send(RESPONSE)
    gc.collect()
    until(lambda: len(memory_server.sent) == 2, "the end of the request")
    assert memory_server.sent == [(7, RESPONSE, False), (7, None, True)]
