from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import bounded
from tests.unit.packed_tensors import TWO, packed_request
from trident.core.config.request_check import BatchForm, RequestValidator
from trident.core.config.spec import BucketSpec, InputSpec, ModelSpec, OutputSpec
from trident.core.errors import InvalidRequest, Unsupported
from trident.core.inference.request import InferenceRequest, InputTensor, PackedInputs
from trident.core.inference.tensors import BY_NAME, bytes_array, layout_of, pack_bytes

ID = "[request id: <id_unknown>] "
NOTE = (
    " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


def spec(max_batch_size: int = 8, **inputs: Any) -> ModelSpec:
    """A spec from inputs by name: (datatype, dims) or (datatype, dims, other fields)."""
    resolved = {}
    for name, (datatype, dims, *more) in inputs.items():
        resolved[name] = InputSpec(name=name, datatype=BY_NAME[datatype], dims=dims, **(more[0] if more else {}))
    return ModelSpec(
        name="simple",
        version=1,
        platform="onnxruntime_onnx",
        backend="onnxruntime",
        max_batch_size=max_batch_size,
        inputs=resolved,
        outputs={"OUT": OutputSpec(name="OUT", datatype=BY_NAME["FP32"], dims=(1,))},
    )


SIMPLE = spec(INPUT0=("INT32", (16,)), INPUT1=("INT32", (16,)))


def raw(name: str, *shape: int, datatype: str = "INT32", size: int | None = None) -> InputTensor:
    count = size if size is not None else int(np.prod(shape)) * 4
    return InputTensor(name, datatype, shape, memoryview(bytes(count)))


def check(model: ModelSpec, *tensors: InputTensor, outputs: tuple[str, ...] = ()) -> InferenceRequest:
    request = InferenceRequest("simple", list(tensors), outputs=outputs)
    RequestValidator(model).check(request)
    return request


def batch_form(model: ModelSpec, *tensors: InputTensor) -> BatchForm:
    """The number of items, and the batch key."""
    return RequestValidator(model).check(InferenceRequest("simple", list(tensors)))


def refusal(model: ModelSpec, *tensors: InputTensor, outputs: tuple[str, ...] = ()) -> str:
    with pytest.raises(InvalidRequest) as caught:
        check(model, *tensors, outputs=outputs)
    return caught.value.message


VARIABLE = spec(8, IN=("INT32", (-1, 4)))


@pytest.mark.parametrize(
    ("model", "tensors", "hint"),
    [
        (SIMPLE, [raw("INPUT0", 16), raw("INPUT1", 1, 16)], "send INPUT0 as [1,16]: one row of 16"),
        (SIMPLE, [raw("INPUT0", 1, 16), raw("INPUT1", size=0)], "send INPUT1 as [1,16]: one row of 16"),
        # More elements than items: it is the batch dimension that is missing.
        (SIMPLE, [raw("INPUT0", 16), raw("INPUT1", 16)], "send INPUT0 as [1,16]: one row of 16"),
        (SIMPLE, [raw("INPUT0", 3, 4, 4), raw("INPUT1", 3, 16)], "send INPUT0 as [3,16]: 3 rows of 16"),
        (SIMPLE, [raw("INPUT0", 1, 15), raw("INPUT1", 1, 16)], "send INPUT0 as [1,16]: one row of 16"),
        (SIMPLE, [raw("INPUT0", 2, 16), raw("INPUT1", 3, 16)], "send as many items in each input"),
        (
            SIMPLE,
            [raw("INPUT0", 1, 16, datatype="FP32"), raw("INPUT1", 1, 16)],
            "send INPUT0 as INT32, in numpy .astype('int32')",
        ),
        (spec(8, IN=("BYTES", (1,))), [raw("IN", 1, 1)], "send IN as BYTES: texts or bytes"),
        (VARIABLE, [raw("IN", 2, 4)], "send IN as [1,-1,4]: one item of [-1,4], where -1 is any size"),
        (spec(0, IN=("INT32", (2, 2))), [raw("IN", 4)], "send IN as [2,2]"),
    ],
)
def test_refusal_hints_at_the_expected_request(model: ModelSpec, tensors: list[InputTensor], hint: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(model, *tensors)
    assert caught.value.hint == hint


def test_counts_beyond_64_bits_are_refused_before_any_allocation() -> None:
    model = spec(8, IN=("INT32", (-1, -1)))
    assert refusal(model, raw("IN", 1, 2**62, 16, size=64)) == (
        ID + f"invalid shape for input 'IN': shape [1,{2**62},16] causes total element count to exceed maximum size of "
        "9223372036854775807"
    )


@pytest.mark.parametrize("datatype", ["INT8", "FP64", "BYTES"])
def test_a_negative_or_huge_dimension_is_refused_by_its_position(datatype: str) -> None:
    model = spec(0, IN=(datatype, (-1, -1)))
    with pytest.raises(InvalidRequest) as negative:
        check(model, raw("IN", -1, -1, datatype=datatype, size=0))
    assert negative.value.message == (
        ID + "All input dimensions should be specified for input 'IN' for model 'simple', got [-1,-1]"
    )
    assert negative.value.hint == "dimension 0 is negative"
    assert refusal(model, raw("IN", 0, 2**62, datatype=datatype, size=0)) == (
        ID + f"invalid shape for input 'IN': dimension 1 of shape [0,{2**62}] is too large, though the input has no "
        "elements"
    )


DIMENSIONS = st.sampled_from((-(2**63), -2, -1, 0, 0, 1, 1, 2, 3, 8, 9, 2**31, 2**60, 2**62, 2**63, 2**64))


@bounded(500)
@given(
    st.sampled_from((0, 8)),
    st.lists(st.sampled_from((-1, -1, 2)), max_size=3),
    st.lists(DIMENSIONS, max_size=4),
    st.sampled_from(("BOOL", "INT32", "FP64", "BYTES")),
    st.one_of(st.none(), st.integers(0, 64)),
)
def test_any_shape_is_refused_or_makes_an_array_of_that_shape(
    max_batch_size: int, dims: list[int], shape: list[int], datatype: str, size: int | None
) -> None:
    model = spec(max_batch_size, IN=(datatype, tuple(dims)))
    count = prod(shape) if 0 <= prod(shape) < 1000 else 3
    right = count * (BY_NAME[datatype].size or 4)  # an empty string has four bytes
    tensor = raw("IN", *shape, datatype=datatype, size=right if size is None else size)
    try:
        check(model, tensor)
    except InvalidRequest:
        return
    assert tensor.array.shape == tensor.shape  # a batch of no items counts as one


def test_wrong_number_of_bytes_elements_is_refused() -> None:
    model = spec(8, IN=("BYTES", (2,)))
    packed = pack_bytes([b"a", b"\0b"])

    request = check(model, InputTensor("IN", "BYTES", (1, 2), memoryview(packed)))
    assert request.inputs[0].array.tolist() == [[b"a", b"\0b"]]
    listed = InputTensor("IN", "BYTES", (1, 2), bytes_array([b"a"], (1,)))
    assert (
        refusal(model, listed) == ID + "expected 2 string elements for inference input 'IN' for model 'simple', got 1"
    )


def test_model_receives_the_reshaped_input() -> None:
    model = spec(8, IN=("INT32", (4, -1), {"model_dims": (-1, 2, 2)}))
    request = check(model, raw("IN", 3, 4, 5))
    assert request.inputs[0].array.shape == (3, 5, 2, 2)
    scalar = spec(8, IN=("INT32", (1,), {"model_dims": ()}))
    assert check(scalar, raw("IN", 3, 1)).inputs[0].array.shape == (3,)


def test_variable_shapes_are_part_of_the_batch_key_unless_ragged() -> None:
    model = spec(8, A=("INT32", (-1,)), B=("INT32", (-1,), {"allow_ragged_batch": True}))
    _, first = batch_form(model, raw("A", 1, 4), raw("B", 1, 5))
    items, same = batch_form(model, raw("A", 2, 4), raw("B", 2, 6))
    _, other = batch_form(model, raw("A", 1, 3), raw("B", 1, 5))
    assert items == 2
    assert first == same
    assert first != other


BUCKETS = BucketSpec(lengths=(4, 8), axes={"A": 1, "B": 1})


def test_batch_key_of_padded_inputs_has_the_bucket_length() -> None:
    plain = spec(8, A=("INT32", (-1,)), B=("INT32", (-1,)), C=("INT32", (-1,), {"optional": True}))
    model = replace(plain, buckets=BUCKETS)

    def key(a: int, b: int, *more: InputTensor) -> object:
        return batch_form(model, raw("A", 1, a), raw("B", 1, b), *more)[1]

    assert key(4, 1) == key(3, 2) == key(0, 0)
    assert key(4, 5) == key(8, 8) != key(4, 4)
    assert key(1, 1, raw("C", 1, 2)) != key(1, 1, raw("C", 1, 3))


def test_an_input_that_is_longer_than_every_bucket_is_refused() -> None:
    model = replace(spec(8, A=("INT32", (-1,)), B=("INT32", (-1,))), buckets=BUCKETS)
    assert refusal(model, raw("A", 1, 8), raw("B", 1, 9)) == (
        ID + "input 'B' has the length 9, but model 'simple' pads to 8 at most"
    )


def test_the_validator_remembers_valid_layouts_only() -> None:
    validator = RequestValidator(TWO)
    for _ in range(3):
        request = packed_request([1, 2, 3], 0.5, rows=2)
        assert validator.check(request) == (2, None)
        assert [tensor.array.tolist() for tensor in request.inputs] == [[[1, 2, 3]] * 2, [[0.5]] * 2]
        with pytest.raises(InvalidRequest, match="batch-size must be <= 8"):
            validator.check(packed_request([1, 2, 3], 0.5, rows=9))


def test_the_validator_does_not_remember_a_layout_without_items() -> None:
    validator = RequestValidator(spec(A=("INT32", (3,))))
    for _ in range(2):
        layout = layout_of([("A", "INT32", (0, 3), 12)])
        content = memoryview(np.array([1, 2, 3], np.int32).tobytes())
        request = InferenceRequest("m", PackedInputs(layout, content))
        assert validator.check(request) == (1, None)
        assert request.inputs[0].array.tolist() == [[1, 2, 3]]


def test_a_shape_tensor_has_no_batch_dimension_and_its_values_are_in_the_key() -> None:
    model = spec(SHAPE=("INT32", (2,), {"is_shape_tensor": True}), VALUE=("INT32", (1,)))

    def shape(*values: int) -> InputTensor:
        return InputTensor("SHAPE", "INT32", (len(values),), memoryview(np.array(values, np.int32).tobytes()))

    rows, key = batch_form(model, shape(3, 4), raw("VALUE", 5, 1))
    assert rows == 5
    assert key == batch_form(model, shape(3, 4), raw("VALUE", 2, 1))[1]
    assert key != batch_form(model, shape(3, 5), raw("VALUE", 5, 1))[1]
    # A form that was seen before is checked again, because its values decide.
    assert key == batch_form(model, shape(3, 4), raw("VALUE", 5, 1))[1]
    checked = check(model, shape(3, 4), raw("VALUE", 5, 1))
    assert checked.inputs[0].array.tolist() == [3, 4]
    text = refusal(model, shape(3, 4, 5), raw("VALUE", 5, 1))
    assert text.startswith(f"{ID}unexpected shape for input 'SHAPE' for model 'simple'. Expected [2], got [3].")


@pytest.mark.parametrize("correlation_id", ["a" * 129, "ä" * 65, "\udce9" * 128])
def test_long_correlation_ids_are_refused(correlation_id: str) -> None:
    request = InferenceRequest("simple", [raw("INPUT0", 1, 16), raw("INPUT1", 1, 16)], correlation_id=correlation_id)
    with pytest.raises(Unsupported, match=r"^string correlation ID cannot be longer than 128 characters$"):
        RequestValidator(SIMPLE).check(request)


@pytest.mark.parametrize("correlation_id", ["a" * 128, "ä" * 64, 2**64 - 1])
def test_correlation_ids_are_limited_to_64_bits(correlation_id: int | str) -> None:
    request = InferenceRequest("simple", [raw("INPUT0", 1, 16), raw("INPUT1", 1, 16)], correlation_id=correlation_id)
    assert RequestValidator(SIMPLE).check(request)[0] == 1
    request.correlation_id = 2**64
    with pytest.raises(InvalidRequest, match="18446744073709551616 is not an unsigned 64-bit integer"):
        RequestValidator(SIMPLE).check(request)
