from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.packed_tensors import spec
from trident.core.config.spec import ModelSpec, OutputSpec
from trident.core.frontend.dataplane import ResponsePlan
from trident.core.http.dataplane import encode_response
from trident.core.inference.response import NO_SEQUENCE, InferenceResponse, OutputTensor, PackedOutputs
from trident.core.inference.tensors import BY_NAME, Array, bytes_array, layout_of, wire_bytes

# --- response codec


SPEC = ModelSpec(
    name="m",
    version=2,
    platform="onnxruntime_onnx",
    backend="onnxruntime",
    max_batch_size=8,
    inputs={},
    outputs={"OUT": OutputSpec(name="OUT", datatype=BY_NAME["FP32"], dims=(2,), labels=("cat", "dog"))},
)


def response(array: Array, datatype: str, **fields: object) -> InferenceResponse:
    output = OutputTensor("OUT", datatype, array.shape, array)
    return InferenceResponse("m", 2, [output], **fields)  # type: ignore[arg-type]


def plan(binary: bool = False, classes: int = 0) -> ResponsePlan:
    return ResponsePlan(outputs={"OUT": (binary, classes)})


def test_json_response_in_tritons_order_of_keys() -> None:
    encoded = encode_response(
        response(np.array([[0.5, 0.1]], np.float32), "FP32", id="r", parameters={"p": 1}), ResponsePlan(), SPEC
    )
    assert encoded[1] is None
    assert encoded[0] == [
        b'{"id":"r","model_name":"m","model_version":"2","parameters":{"p":1},"outputs":[{"name":"OUT",'
        b'"datatype":"FP32","shape":[1,2],"data":[0.5,0.10000000149011612]}]}'
    ]


def test_large_and_empty_binary_tensors() -> None:
    array = np.zeros((1, 5000), np.float32)
    encoded = encode_response(response(array, "FP32"), plan(binary=True), SPEC)
    assert np.shares_memory(array, np.frombuffer(encoded[0][1], np.uint8))
    encoded = encode_response(response(np.zeros((1, 0), np.float32), "FP32"), plan(binary=True), SPEC)
    assert encoded[1] is None
    assert orjson.loads(encoded[0][0])["outputs"][0]["parameters"] == {"binary_data_size": 0}


def test_special_values_and_bytes_are_written_in_one_response() -> None:
    outputs = [
        OutputTensor("A", "FP32", (4,), np.array([np.nan, np.inf, -np.inf, 1.5], np.float32)),
        OutputTensor("B", "BYTES", (2,), bytes_array([b"null", b"\xff"], (2,))),
        OutputTensor("C", "BYTES", (1,), bytes_array([b"null"], (1,))),
    ]
    both = InferenceResponse("m", 1, outputs)
    assert b'"data":[NaN,Infinity,-Infinity,1.5]' in encode_response(both, ResponsePlan(), SPEC)[0][0]
    assert b'"data":["null","\xff"]' in encode_response(both, ResponsePlan(), SPEC)[0][0]
    words = InferenceResponse("m", 1, [outputs[0], outputs[2]])
    assert bytes(encode_response(words, ResponsePlan(), SPEC)[0][0]).endswith(b'"data":["null"]}]}')


# --- A response written with a remembered text equals, to the byte, one that is encoded from scratch


PAIR = spec(A=("INT32", (-1,)), B=("FP32", (-1,)))
NUMBERS = [name for name in BY_NAME if name not in ("FP16", "BF16", "BYTES", "BOOL")]


def packed_response(request_id: str = "", **tensors: tuple[str, Array]) -> InferenceResponse:
    contents = {name: bytes(wire_bytes(array)) for name, (_, array) in tensors.items()}
    layout = layout_of([(n, datatype, array.shape, len(contents[n])) for n, (datatype, array) in tensors.items()])
    return InferenceResponse("m", 3, PackedOutputs(layout, memoryview(b"".join(contents.values()))), id=request_id)


def unpacked(made: InferenceResponse) -> InferenceResponse:
    """The same response, which has no text."""
    return InferenceResponse(
        made.model_name, made.model_version, list(made.outputs), id=made.id, parameters=made.parameters
    )


def both(made: InferenceResponse, **plan: Any) -> tuple[bytes, bytes]:
    """The body encoded without a text, and the body written with a remembered one."""
    form = ResponsePlan(**plan)
    anew, again = [encode_response(each, form, PAIR) for each in (unpacked(made), made, made)][::2]
    assert again[1] == anew[1]
    return b"".join(anew[0]), b"".join(again[0])


@pytest.mark.parametrize("datatype", NUMBERS)
@given(data=st.data())
def test_cached_text_writes_numbers_of_every_datatype(datatype: str, data: st.DataObject) -> None:
    content = data.draw(st.binary(min_size=16, max_size=16))
    array = np.frombuffer(content, BY_NAME[datatype].dtype).reshape(1, -1)
    anew, again = both(packed_response(A=(datatype, array), B=("FP32", np.array([[0.1]], np.float32))))
    assert again == anew


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_cached_text_writes_non_finite_numbers(value: float) -> None:
    anew, again = both(packed_response(A=("FP64", np.array([[1.0, value]]))))
    assert again == anew
    assert b"null" not in again


def two_outputs(request_id: str) -> InferenceResponse:
    return packed_response(
        request_id, A=("INT32", np.array([[1, 2, 3]], np.int32)), B=("FP32", np.array([[0.5, 1e30]], np.float32))
    )


@pytest.mark.parametrize(
    "outputs",
    [
        None,
        {"A": (True, 0), "B": (True, 0)},
        {"A": (True, 0)},
        {"B": (True, 0)},
        {"A": (False, 0), "B": (False, 0)},
        {"A": (False, 2), "B": (True, 0)},
    ],
)
@pytest.mark.parametrize("binary", [False, True])
def test_cached_text_writes_every_mixture_of_forms(outputs: dict[str, tuple[bool, int]] | None, binary: bool) -> None:
    anew, again = both(two_outputs("r"), binary=binary, outputs=outputs)
    assert again == anew


@pytest.mark.parametrize("request_id", ["", '"data":[]', "\u00e4\\"])
def test_cached_text_writes_any_request_id(request_id: str) -> None:
    anew, again = both(two_outputs(request_id), outputs={"A": (False, 2), "B": (True, 0)})
    assert again == anew


def test_cached_text_of_an_ensemble_has_its_parameters() -> None:
    made = two_outputs("r")
    bare, _ = both(made)
    made.parameters = NO_SEQUENCE
    anew, again = both(made)
    assert again == anew
    assert orjson.loads(again).pop("parameters") == {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
    made.parameters = {}
    assert both(made) == (bare, bare)


def test_cached_text_is_specific_to_model_version_layout_and_form() -> None:
    one = np.ones((1, 1), np.int32)
    made = [
        packed_response(A=("INT32", one)),
        packed_response("r", A=("INT32", one)),
        packed_response(B=("INT32", one)),
        packed_response(A=("INT32", one)),
        packed_response(A=("INT32", one)),
    ]
    made[3].model_version = 4
    made[4].model_name = "n"
    for each in (*made, *made):
        for plan in ({}, {"binary": True}, {"outputs": {"A": (True, 0)}}, {"outputs": {"A": (False, 0)}}):
            anew, again = both(each, **plan)
            assert again == anew
