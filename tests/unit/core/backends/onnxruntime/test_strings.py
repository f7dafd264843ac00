"""BYTES as text and as C++ strings."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.backend_serving import strings
from trident.core.backends.onnxruntime.runs import BLOCK, StringObjects, read_strings, to_bytes, to_text

ELEMENTS = [b"", b"one", b"\xff\0\xfe", "日本".encode(), b"x" * 1000, b"\0"]


def test_text_is_converted_and_back() -> None:
    array = strings("häß".encode(), b"a\0b", shape=(2, 1))
    text = to_text(array)
    assert text.tolist() == [["häß"], ["a\0b"]]
    assert to_bytes(text).tolist() == array.tolist()


@pytest.mark.parametrize("element", [b"\xff", b"\xed\xa0\x80", b"a\xc3"])
def test_bytes_that_are_not_text_raise(element: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        to_text(strings(b"text", element))


def test_string_objects_are_read_back() -> None:
    objects = StringObjects(strings(*ELEMENTS, shape=(2, 3)))
    assert objects.array.shape == (2, 3)
    read = read_strings(objects.array.ctypes.data, (2, 3))
    assert read.shape == (2, 3)
    assert read.ravel().tolist() == ELEMENTS


def test_more_strings_than_are_converted_at_a_time_are_read_back() -> None:
    elements = [b"%d" % number * (number % 9) for number in range(2 * BLOCK + 1)]
    objects = StringObjects(strings(*elements, shape=(len(elements),)))
    assert read_strings(objects.array.ctypes.data, (len(elements),)).tolist() == elements


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_a_tensor_without_elements_is_read_back(shape: tuple[int, ...]) -> None:
    assert StringObjects(np.empty(shape, object)).array.shape == shape
    assert read_strings(0, shape).shape == shape
