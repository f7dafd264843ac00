"""Tensors, and runs of them."""

from __future__ import annotations

import pytest

from tests.unit.packed_tensors import packed_request
from trident.core.inference.request import InputTensor
from trident.core.inference.tensors import bytes_array, layout_of, pack_bytes, unpack_bytes


@pytest.mark.parametrize("count", [0, 1, 1 << 14, (1 << 14) + 1, 1 << 15, 100_000])
def test_strings_survive_packing_however_many_they_are(count: int) -> None:
    strings = [b"%d" % number for number in range(count)]
    packed = pack_bytes(strings)
    assert packed == b"".join(len(each).to_bytes(4, "little") + each for each in strings)
    unpacked = unpack_bytes(packed, count, name="IN", model="simple")
    assert bytes_array(unpacked, (count, 1)).tolist() == [[each] for each in strings]


def test_tensors_that_look_alike_share_one_layout() -> None:
    described = [("A", "INT32", (1, 3), 12), ("B", "FP64", (1, 1), 8)]
    layout = layout_of(described)
    assert layout is layout_of(list(described))
    assert layout is not layout_of(described[:1])
    assert layout.size == 20
    assert layout.entries[1] == ("B", "FP64", (1, 1), 12, 20)
    assert layout_of([]).size == 0
    first = layout_of([("A", "INT8", (0,), 0)])
    for size in range(1, 1100):
        assert layout_of([("A", "INT8", (size,), size)]).size == size
    assert layout_of([("A", "INT8", (0,), 0)]).entries == first.entries


def test_packed_inputs_have_the_same_size_and_are_cut_on_first_use() -> None:
    request = packed_request([1, 2, 3], 0.5, rows=2)
    assert request.nbytes == 40
    inputs = [*request.inputs, InputTensor("C", "BYTES", (1,), memoryview(b"\x01\0\0\0x"))]
    assert request.with_inputs(inputs, model_version=-1, id="").nbytes == 45
    request = packed_request([1, 2, 3], 0.5)
    first, second = request.inputs
    assert (first.name, first.datatype, first.shape) == ("A", "INT32", (1, 3))
    assert first.array.tolist() == [[1, 2, 3]]
    assert second.array.tolist() == [[0.5]]
    assert second.array.flags.aligned
    assert request.inputs[0] is first
