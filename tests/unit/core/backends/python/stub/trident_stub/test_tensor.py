"""Tensor: arrays, what arrives, what leaves, and the wire form of strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from trident_stub.errors import TritonModelException
from trident_stub.tensor import (
    Tensor,
    deserialize_bytes_tensor,
)


def test_a_large_array_leaves_without_a_copy() -> None:
    array = np.zeros(100_000, np.float32)
    contents = Tensor("T", array)._contents()
    array[0] = 1
    assert len(contents) == array.nbytes
    assert bytes(contents[:4]) == np.float32(1).tobytes()


def test_a_tensor_that_no_frame_can_have() -> None:
    # Nobody touches these zeros, so that they take no memory.
    with pytest.raises(TritonModelException, match="Tensor 'T' has 4294967296 bytes, which is more than the"):
        Tensor("T", np.zeros(1 << 32, np.uint8))._contents()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3).T,
        np.arange(10)[::2],
        np.arange(4, dtype=">i4"),
        np.asfortranarray(np.ones((2, 3), np.float32)),
    ],
)
def test_other_layouts_are_put_in_order(array: np.ndarray[Any, Any]) -> None:
    made = Tensor("T", array)
    assert made.shape() == list(array.shape)
    assert bytes(made._contents()) == np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


@pytest.mark.parametrize(
    ("array", "wire"),
    [
        (np.array([["a", "\u00e9"]], np.object_), b"\1\0\0\0a\2\0\0\0\xc3\xa9"),
        (np.array([b"a\0", b""], np.object_), b"\2\0\0\0a\0\0\0\0\0"),
        (np.array(["a", "bc"]), b"\1\0\0\0a\2\0\0\0bc"),
        (np.array([b"a", b"bc"]), b"\1\0\0\0a\2\0\0\0bc"),
        (np.array([1, None], np.object_), b"\1\0\0\x001\4\0\0\0None"),
        (np.empty((0,), np.object_), b""),
        (np.array("scalar", np.object_), b"\6\0\0\0scalar"),
    ],
)
def test_strings(array: np.ndarray[Any, Any], wire: bytes) -> None:
    made = Tensor("T", array)
    assert made.triton_dtype() == 13
    assert made._contents() == wire
    assert made.shape() == list(array.shape)
    arrived = Tensor._view("T", "BYTES", array.shape, memoryview(wire))
    assert arrived.as_numpy().dtype == np.object_
    assert arrived.as_numpy().shape == array.shape
    assert all(isinstance(element, bytes) for element in arrived.as_numpy().flat)
    assert arrived._contents() == wire


def test_a_string_that_cannot_be_encoded_fails_where_the_tensor_is_made() -> None:
    with pytest.raises(UnicodeEncodeError):
        Tensor("T", np.array(["\ud800"], np.object_))


def test_bfloat16_has_no_array() -> None:
    arrived = Tensor._view("T", "BF16", (2,), memoryview(b"\0\0\x80\x3f"))
    assert arrived.triton_dtype() == 14
    assert arrived._contents() == b"\0\0\x80\x3f"
    with pytest.raises(TritonModelException) as caught:
        arrived.as_numpy()
    assert str(caught.value) == (
        "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
    )


@pytest.mark.parametrize(
    ("name", "array", "error", "text"),
    [
        ("", np.zeros(1), TritonModelException, "Tensor name cannot be an empty string."),
        ("T", None, TypeError, "must be a numpy array, not NoneType"),
        ("T", [1, 2], TypeError, "must be a numpy array, not list"),
        (None, np.zeros(1), TypeError, "the name must be a str, not NoneType"),
        ("T", np.zeros(1, np.complex64), TritonModelException, "'complex64', which has no Triton datatype"),
        ("T", np.zeros(1, "M8[s]"), TritonModelException, "which has no Triton datatype"),
        ("T", np.zeros(1, [("a", "i4")]), TritonModelException, "which has no Triton datatype"),
    ],
)
def test_what_cannot_be_a_tensor(name: Any, array: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        Tensor(name, array)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        (b"\1\0", "ends inside the length of its element 0"),
        (b"\1\0\0\0a\5\0\0\0abc", "ends inside its element 1"),
        (b"\xff\xff\xff\xff", "ends inside its element 0"),
    ],
)
def test_a_wire_form_that_is_too_short(wire: bytes, text: str) -> None:
    with pytest.raises(TritonModelException, match=text):
        deserialize_bytes_tensor(wire)
