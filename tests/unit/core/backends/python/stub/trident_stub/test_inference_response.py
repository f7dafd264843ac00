"""InferenceResponse: what it keeps and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from trident_stub.errors import TritonError, TritonModelException
from trident_stub.inference_response import InferenceResponse
from trident_stub.tensor import Tensor

A, B = Tensor("A", np.zeros(1)), Tensor("B", np.zeros(1))


def test_outputs_errors_and_parameters() -> None:
    plain = InferenceResponse([A, B])
    assert plain.output_tensors() == [A, B]
    assert not plain.has_error()
    assert plain.error() is None
    assert json.loads(plain.parameters()) == {}
    failed = InferenceResponse(error=TritonError("no", TritonError.NOT_FOUND), parameters={"a": True, "b": 1, "c": ""})
    assert failed.output_tensors() == []
    error = failed.error()
    assert error is not None
    assert (error.message(), error.code()) == ("no", 2)
    assert failed.has_error()
    assert json.loads(failed.parameters()) == {"a": True, "b": 1, "c": ""}


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
def test_what_is_refused(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        InferenceResponse(**arguments)
    assert text in str(caught.value)
