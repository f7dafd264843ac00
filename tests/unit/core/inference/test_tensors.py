from __future__ import annotations

import pytest

from trident.core.inference.tensors import bytes_array, pack_bytes, unpack_bytes


@pytest.mark.parametrize("count", [0, 1, 1 << 14, (1 << 14) + 1, 1 << 15, 100_000])
def test_strings_survive_packing_however_many_they_are(count: int) -> None:
    strings = [b"%d" % number for number in range(count)]
    packed = pack_bytes(strings)
    assert packed == b"".join(len(each).to_bytes(4, "little") + each for each in strings)
    unpacked = unpack_bytes(packed, count, name="IN", model="simple")
    assert bytes_array(unpacked, (count, 1)).tolist() == [[each] for each in strings]
