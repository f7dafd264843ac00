"""InferenceRequest: those that arrive, and those that a model makes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from trident_stub.errors import TritonModelException
from trident_stub.request import InferenceRequest, InferenceTrace, MemoryType, PreferredMemory
from trident_stub.tensor import Tensor

T = Tensor("T", np.zeros(1))


def test_a_request_that_arrived() -> None:
    fields = json.dumps(
        {
            "id": "r",
            "correlation_id": "s",
            "flags": 3,
            "timeout": 5,
            "parameters": {"a": [1, 0.5]},
            "trace": [7, '{"traceparent": "00-1"}'],
        }
    )
    request = InferenceRequest._arrived(7, [T], ("A", "B"), fields.encode())
    assert request.inputs() == [T]
    assert request.request_id() == "r"
    assert request.correlation_id() == "s"
    assert request.flags() == 3
    assert request.timeout() == 5
    assert json.loads(request.parameters()) == {"a": [1, 0.5]}
    assert request.trace().get_context() == '{"traceparent": "00-1"}'
    assert request.requested_output_names() == {"A", "B"}
    request.set_flags(1)
    assert request.flags() == 1


def test_a_request_of_the_model() -> None:
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


def test_numbers_of_numpy_and_any_sequence_of_names() -> None:
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
        (
            {"inputs": [None], "request_id": "R"},
            TritonModelException,
            "Input tensor for request with id 'R' and model name 'M' should not be empty.",
        ),
        ({"requested_output_names": None}, TypeError, "'requested_output_names' must be a list of str"),
        ({"requested_output_names": "A"}, TypeError, "'requested_output_names' must be a list of str"),
        ({"requested_output_names": b"A"}, TypeError, "'requested_output_names' must be a list of str"),
        ({"requested_output_names": [1]}, TypeError, "each of 'requested_output_names' must be a str, not int"),
        ({"model_name": None}, TypeError, "'model_name' must be a str, not NoneType"),
        ({"request_id": None}, TypeError, "'request_id' must be a str, not NoneType"),
        ({"correlation_id": None}, TypeError, "'correlation_id', if not an int, must be a str, not NoneType"),
        ({"model_version": "1"}, TypeError, "'model_version' must be an int, not str"),
        ({"flags": None}, TypeError, "'flags' must be an int"),
        ({"timeout": None}, TypeError, "'timeout' must be an int"),
        ({"preferred_memory": None}, TypeError, "'preferred_memory' must be a PreferredMemory"),
        ({"trace": None}, TypeError, "'trace' must be a InferenceTrace"),
        ({"parameters": 1}, TritonModelException, "Expect dict, got <class 'int'>"),
        (
            {"parameters": {"a": 0.5}},
            TritonModelException,
            "Expect parameters values to have type bool/int/str, found type <class 'float'>",
        ),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        InferenceRequest(**{"inputs": [T], "requested_output_names": ["A"], "model_name": "M", **arguments})
    assert text in str(caught.value)


@pytest.mark.parametrize("arguments", [(None,), ("GPU",), (MemoryType.TRITONSERVER_MEMORY_GPU, None)])
def test_wrong_preferences(arguments: Any) -> None:
    with pytest.raises(TypeError, match="PreferredMemory"):
        PreferredMemory(*arguments)
