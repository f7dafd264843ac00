"""The wire form of string tensors: what is too short is refused."""

from __future__ import annotations

import numpy as np
import pytest
from trident_stub.errors import TritonModelException
from trident_stub.strings import deserialize_bytes_tensor, serialize_byte_tensor


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


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview, lambda wire: np.frombuffer(wire, np.uint8)])
def test_every_kind_of_buffer(form: type) -> None:
    elements = deserialize_bytes_tensor(form(serialize_byte_tensor(np.array([["a", "bc"]]))))
    assert elements.tolist() == [b"a", b"bc"]
    assert elements.dtype == np.object_
