from __future__ import annotations

from typing import Any

import pytest

from trident.core.errors import InvalidRequest
from trident.core.grpc.request import array_of_contents
from trident.core.grpc.schema import InferTensorContents
from trident.core.inference.tensors import BY_NAME


def array_of(datatype: str, **fields: Any) -> Any:
    return array_of_contents(InferTensorContents(**fields), datatype, "IN", "m")


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BOOL", "bool_contents", [True, False, True]),
        ("INT8", "int_contents", [-128, 127]),
        ("INT16", "int_contents", [-32768, 32767]),
        ("INT32", "int_contents", [-(2**31), 0, 2**31 - 1]),
        ("INT64", "int64_contents", [-(2**63), 2**63 - 1]),
        ("UINT8", "uint_contents", [0, 255]),
        ("UINT16", "uint_contents", [65535]),
        ("UINT32", "uint_contents", [2**32 - 1]),
        ("UINT64", "uint64_contents", [2**64 - 1]),
        ("FP32", "fp32_contents", [0.5, -0.0, 2.0**127, float("inf")]),
        ("FP64", "fp64_contents", [1e300, 0.1]),
        ("FP32", "fp32_contents", [0.25] * 50_000),
    ],
)
def test_each_datatype_has_its_field(datatype: str, field: str, values: list[Any]) -> None:
    array = array_of(datatype, **{field: values})
    assert array.dtype == BY_NAME[datatype].dtype
    assert array.flags.aligned
    assert array.tolist() == values


def test_numbers_that_are_too_large_for_a_narrow_datatype_are_cut_as_in_triton() -> None:
    assert array_of("INT8", int_contents=[200, -129, 256]).tolist() == [-56, 127, 0]
    assert array_of("UINT16", uint_contents=[65536 + 7]).tolist() == [7]


def test_strings_are_bytes_of_any_length() -> None:
    array = array_of("BYTES", bytes_contents=[b"a", b"", b"\xff\0"])
    assert (array.dtype, array.tolist()) == (object, [b"a", b"", b"\xff\0"])


def test_no_elements() -> None:
    assert array_of("FP32") is None
    assert array_of("FP16") is None


def test_fields_that_no_version_knows_do_not_disturb() -> None:
    content = InferTensorContents(fp32_contents=[1.5, 2.5]).SerializeToString()
    contents = InferTensorContents.FromString(b"\x98\x06\x05" + content)
    array = array_of_contents(contents, "FP32", "IN", "m")
    assert array is not None
    assert array.tolist() == [1.5, 2.5]


WHERE = "unexpected explicit tensor data for input tensor 'IN' for model 'm'"


@pytest.mark.parametrize(
    ("datatype", "fields", "text"),
    [
        ("INT32", {"fp32_contents": [1]}, f"{WHERE} of type 'FP32', expected datatype 'INT32'"),
        ("FP32", {"int_contents": [1]}, f"{WHERE} of type 'INT32', expected datatype 'FP32'"),
        ("FP16", {"fp32_contents": [1]}, f"{WHERE} of type 'FP32', expected datatype 'FP16'"),
        ("INT64", {"int_contents": [1]}, f"{WHERE} of type 'INT32', expected datatype 'INT64'"),
        ("UINT8", {"int_contents": [1]}, f"{WHERE} of type 'INT32', expected datatype 'UINT8'"),
        ("odd", {"bytes_contents": [b""]}, f"{WHERE} of type 'BYTES', expected datatype '<invalid>'"),
        ("INT32", {"int_contents": [1], "fp64_contents": [1]}, f"{WHERE}, binary data was already supplied."),
        ("INT32", {"bool_contents": [1], "int_contents": [1]}, f"{WHERE} of type 'BOOL', expected datatype 'INT32'"),
    ],
)
def test_elements_in_a_wrong_field_have_tritons_text(datatype: str, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        array_of(datatype, **fields)
    assert str(refusal.value) == text
