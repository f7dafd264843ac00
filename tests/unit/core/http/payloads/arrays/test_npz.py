from __future__ import annotations

import io
import struct
import zipfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.http.payloads.payload_models import RULES, column, model, one
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.arrays import decode_npz, encode_npz, write_npy
from trident.core.http.payloads.payload import DecodeRules

SPEC = model({"A": ("FP32", (2,)), "B": ("INT64", (1,))}, optional="B")


def saved(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def compressed(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def archive(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as target:
        for name, content in members:
            target.writestr(name, content)
    return file.getvalue()


def test_arrays_are_inputs_by_name() -> None:
    for save in (saved, compressed):
        payload = decode_npz(memoryview(save(A=np.ones((2, 2)), B=np.array([[3], [4]]))), SPEC, RULES)
        assert payload.arrays["A"].tolist() == [[1, 1], [1, 1]]
        assert payload.arrays["B"].tolist() == [[3], [4]]
        assert (payload.count, payload.stacked) == (2, True)


def test_numpy_loads_the_encoded_outputs() -> None:
    columns = [column("A", "FP32", [[1, 2]]), column("B/C", "BYTES", [b"x"])]
    with np.load(io.BytesIO(b"".join(encode_npz(columns))), allow_pickle=False) as loaded:
        assert {name: loaded[name].tolist() for name in loaded.files} == {"A": [[1, 2]], "B/C": [[b"x"]]}
    assert b"".join(encode_npz(columns)) == b"".join(encode_npz(columns))


A = write_npy(np.ones((1, 2), np.float32))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "it has no directory at its end"),
        (b"[1,2]", "it has no directory at its end"),
        (b"PK\x05\x06", "it has no directory at its end"),
        (saved(A=np.ones((1, 2)))[:-30], "it has no directory at its end"),
        (b"PK\x05\x06" + bytes(18), "the archive: input 'A' is missing"),
        (saved(A=np.ones((1, 2)), X=np.ones(1)), "the archive: 'X' is not an input of model 'm'"),
        (archive(("A.npy", A), ("A", A)), "the archive has the array 'A' twice"),
        (archive(("A.npy", b"junk")), "array 'A' is not an array in numpy's format"),
        (archive(("A.npy", A), method=zipfile.ZIP_LZMA), "compressed in a way that numpy does not write"),
        (saved(A=np.array([object()])), "array 'A': arrays of Python objects are pickled"),
        (saved(A=np.ones((1, 3))), r"input 'A': expected shape \[-1,2\], got \[1,3\]"),
    ],
)
def test_an_error_names_its_cause(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        decode_npz(body, SPEC, RULES)


def test_the_sizes_in_the_directory_refuse_a_bomb() -> None:
    bomb = compressed(IN=np.zeros((1, 10_000_000), np.uint8))
    assert len(bomb) < 20_000
    with pytest.raises(InvalidRequest, match="the arrays of the archive have 10000128 bytes, at most 1000000"):
        decode_npz(bomb, one("UINT8", -1), DecodeRules(max_input_size=1_000_000))


def test_a_bomb_is_inflated_only_to_its_claimed_size() -> None:
    bomb = bytearray(compressed(IN=np.zeros((1, 10_000_000), np.uint8)))
    directory = bomb.rindex(b"PK\x01\x02")
    struct.pack_into("<L", bomb, directory + 24, 500)
    with pytest.raises(InvalidRequest, match="not a numpy archive"):
        decode_npz(bomb, one("UINT8", -1), RULES)


def test_a_large_directory_is_not_read() -> None:
    body = archive(*((f"{i:0>200}", b"") for i in range(5000)))
    with pytest.raises(InvalidRequest, match="its directory is larger than"):
        decode_npz(body, SPEC, RULES)
    small = archive(("A.npy", A))
    end = small.rindex(b"PK\x05\x06")
    with pytest.raises(InvalidRequest, match="its directory is larger than"):
        decode_npz(small[:end] + b"PK\x06\x07" + bytes(16) + small[end:], SPEC, RULES)


@given(st.data())
def test_broken_archives_raise_only_invalid_request(drawn: st.DataObject) -> None:
    body = bytearray(compressed(A=np.ones((1, 2), np.float32), B=np.ones((1, 1), np.int64)))
    for _ in range(drawn.draw(st.integers(1, 4))):
        body[drawn.draw(st.integers(0, len(body) - 1))] = drawn.draw(st.integers(0, 255))
    try:
        payload = decode_npz(body, SPEC, RULES)
    except InvalidRequest:
        return
    assert payload.count == 1
