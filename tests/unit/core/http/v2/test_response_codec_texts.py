"""A response written with a remembered text equals, to the byte, one that is encoded from scratch."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.packed_tensors import TWO, packed_responses, spec
from trident.core.http.v2_known import ResponsePlan, ResponseText
from trident.core.http.v2_response import encode_response
from trident.core.inference.response import NO_SEQUENCE, InferenceResponse, PackedOutputs
from trident.core.inference.tensors import BY_NAME, Array, TensorLayout, layout_of, wire_bytes

SPEC = spec(A=("INT32", (-1,)), B=("FP32", (-1,)))
NUMBERS = [name for name in BY_NAME if name not in ("FP16", "BF16", "BYTES", "BOOL")]


def response(request_id: str = "", **tensors: tuple[str, Array]) -> InferenceResponse:
    contents = {name: bytes(wire_bytes(array)) for name, (_, array) in tensors.items()}
    layout = layout_of([(n, datatype, array.shape, len(contents[n])) for n, (datatype, array) in tensors.items()])
    return InferenceResponse("m", 3, PackedOutputs(layout, memoryview(b"".join(contents.values()))), id=request_id)


def both(made: InferenceResponse, **plan: Any) -> tuple[bytes, bytes]:
    """The body encoded from scratch, and the body written with a remembered text."""
    remembering = ResponsePlan(**plan).keeping_texts()
    encode_response(made, remembering, SPEC)
    anew, again = encode_response(made, ResponsePlan(**plan), SPEC), encode_response(made, remembering, SPEC)
    assert again[1] == anew[1]
    return b"".join(anew[0]), b"".join(again[0])


def texts_of(made: InferenceResponse, plan: ResponsePlan) -> list[ResponseText | None]:
    encode_response(made, plan, SPEC)
    assert plan.texts is not None
    return list(plan.texts.values())


@pytest.mark.parametrize("datatype", NUMBERS)
@given(data=st.data())
def test_remembered_texts_write_numbers_of_every_datatype(datatype: str, data: st.DataObject) -> None:
    content = data.draw(st.binary(min_size=16, max_size=16))
    array = np.frombuffer(content, BY_NAME[datatype].dtype).reshape(1, -1)
    anew, again = both(response(A=(datatype, array), B=("FP32", np.array([[0.1]], np.float32))))
    assert again == anew


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_numbers_are_written_as_without_a_text(value: float) -> None:
    anew, again = both(response(A=("FP64", np.array([[1.0, value]]))))
    assert again == anew
    assert b"null" not in again


def two_outputs(request_id: str) -> InferenceResponse:
    return response(
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
def test_remembered_texts_write_every_mixture_of_forms(
    outputs: dict[str, tuple[bool, int]] | None, binary: bool
) -> None:
    anew, again = both(two_outputs("r"), binary=binary, outputs=outputs)
    assert again == anew


@pytest.mark.parametrize("request_id", ["", '"data":[]', "\u00e4\\", "\udcff"])
def test_remembered_texts_write_any_request_id(request_id: str) -> None:
    anew, again = both(two_outputs(request_id), outputs={"A": (False, 2), "B": (True, 0)})
    assert again == anew


@pytest.mark.parametrize("binary", [False, True])
def test_remembered_texts_write_outputs_without_elements(binary: bool) -> None:
    none = np.zeros((1, 0), np.int32)
    for tensors in ({"A": ("INT32", none)}, {"A": ("INT32", none), "B": ("FP32", np.ones((1, 1), np.float32))}):
        anew, again = both(response(**tensors), binary=binary)  # type: ignore[arg-type]
        assert again == anew


@pytest.mark.parametrize(
    ("datatype", "array"), [("BOOL", np.ones((1, 2), bool)), ("INT32", np.ones((1, 5000), np.int32))]
)
def test_outputs_without_a_text_are_encoded_each_time(datatype: str, array: Array) -> None:
    made = response(A=(datatype, array))
    anew, again = both(made)
    assert again == anew
    assert texts_of(made, ResponsePlan().keeping_texts()) == [None]


def test_an_ensembles_text_has_its_parameters() -> None:
    made = two_outputs("r")
    bare, _ = both(made)
    plan = ResponsePlan().keeping_texts()
    encode_response(made, plan, SPEC)
    made.parameters = NO_SEQUENCE
    anew, again = both(made)
    assert again == anew == b"".join(encode_response(made, plan, SPEC)[0])
    assert orjson.loads(again).pop("parameters") == {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
    made.parameters = {}
    assert b"".join(encode_response(made, plan, SPEC)[0]) == bare
    assert len(plan.texts or ()) == 2


def test_a_text_belongs_to_one_version_and_one_layout() -> None:
    plan = ResponsePlan().keeping_texts()
    one = np.ones((1, 1), np.int32)
    made = [response(A=("INT32", one)), response("r", A=("INT32", one)), response(B=("INT32", one))]
    other = response(A=("INT32", one))
    other.model_version = 4
    for each in (*made, other, *made):
        expected = encode_response(each, ResponsePlan(), SPEC)[0]
        assert encode_response(each, plan, SPEC)[0] == expected
    assert plan.texts is not None
    assert len(plan.texts) == 3


@pytest.mark.parametrize("request_id", ["", "an id", 'quotes " and \u00e4'])
def test_the_text_of_a_binary_response_is_written_once(request_id: str) -> None:
    plan = ResponsePlan(binary=True).keeping_texts()
    for response in packed_responses(3, request_id):
        once = encode_response(response, ResponsePlan(binary=True), TWO)
        again = encode_response(response, plan, TWO)
        assert b"".join(again[0]) == b"".join(once[0])
        assert again[1] == once[1]
        assert orjson.loads(again[0][0]).get("id", "") == request_id
    assert plan.texts is not None
    assert len(plan.texts) == 1


def test_the_text_of_a_response_with_parameters_is_not_remembered() -> None:
    plan = ResponsePlan(binary=True).keeping_texts()
    (first, second) = packed_responses(2)
    first.parameters = {"p": 1}
    assert orjson.loads(encode_response(first, plan, TWO)[0][0])["parameters"] == {"p": 1}
    assert "parameters" not in orjson.loads(encode_response(second, plan, TWO)[0][0])


def test_a_json_output_is_written_for_each_response() -> None:
    plan = ResponsePlan(outputs={"A": (False, 0), "B": (True, 0)}).keeping_texts()
    seen = [orjson.loads(encode_response(response, plan, TWO)[0][0])["outputs"][0] for response in packed_responses(2)]
    assert [entry["data"] for entry in seen] == [[0, 1, 2], [3, 4, 5]]


def test_the_number_of_remembered_texts_is_bounded() -> None:
    plan = ResponsePlan(binary=True).keeping_texts()
    assert plan.texts is not None
    for number in range(1000):
        plan.texts[number, TensorLayout(())] = None
    assert 0 < len(plan.texts) <= 64
