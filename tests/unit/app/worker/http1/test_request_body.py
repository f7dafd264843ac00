"""Request bodies."""

from __future__ import annotations

import numpy as np
import pytest

from app.worker.http1.request_body import BodyInput, allocate_body, size_of


@pytest.mark.parametrize("offset", [0, 1, 63, 64, 1000])
@pytest.mark.parametrize("size", [1, 100, 70_000])
def test_offset_lies_on_a_cache_line(size: int, offset: int) -> None:
    body = allocate_body(size, offset)
    assert len(body) == size
    assert (np.frombuffer(body, np.uint8).ctypes.data + offset) % 64 == 0


def test_input_reads_as_a_file() -> None:
    source = BodyInput(memoryview(b"one\ntwo\nthree"))
    assert source.read(2) == b"on"
    assert source.readline() == b"e\n"
    assert source.read(100) == b"two\nthree"
    assert source.read() == b""
    assert list(BodyInput(memoryview(b"a\nb"))) == [b"a\n", b"b"]
    assert BodyInput(memoryview(b"abc")).read() == b"abc"


def test_size_is_in_bytes() -> None:
    assert [size_of(b"abc"), size_of(np.zeros((2, 3), np.int32).data)] == [3, 24]
