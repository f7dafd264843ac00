"""Tensors packed in one run of bytes."""

from __future__ import annotations

from tests.unit.packed_tensors import packed_request
from trident.core.inference.request import InputTensor


def test_packed_and_separate_inputs_have_the_same_size() -> None:
    request = packed_request([1, 2, 3], 0.5, rows=2)
    assert request.nbytes == 40
    request.inputs = [*request.inputs, InputTensor("C", "BYTES", (1,), memoryview(b"\x01\0\0\0x"))]
    assert request.nbytes == 45


def test_packed_inputs_are_cut_on_first_use() -> None:
    request = packed_request([1, 2, 3], 0.5)
    first, second = request.inputs
    assert (first.name, first.datatype, first.shape) == ("A", "INT32", (1, 3))
    assert first.array.tolist() == [[1, 2, 3]]
    assert second.array.tolist() == [[0.5]]
    assert second.array.flags.aligned
    assert request.inputs[0] is first
