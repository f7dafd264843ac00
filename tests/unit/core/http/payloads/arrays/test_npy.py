from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest

from tests.unit.core.http.payloads.payload_models import RULES, column, model, one
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.arrays import decode_npy, encode_npy, read_npy, write_npy
from trident.core.inference.tensors import Array


def saved(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def with_header(header: bytes, elements: bytes = b"", version: int = 1) -> bytes:
    length = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + elements


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(6, dtype=">i2").reshape(3, 2),
        np.array(True),
        np.array([[]], np.float16),
        np.array([["a", "é"]]),
        np.array([b"a", b"\xff"]),
        np.array([""]),
        np.zeros((1,) * 32),
    ],
)
def test_arrays_that_numpy_saves_are_read(array: Array) -> None:
    got = read_npy(saved(array), "it")
    assert got.dtype == array.dtype.newbyteorder("=")
    assert got.flags.c_contiguous
    assert got.shape == array.shape
    np.testing.assert_array_equal(got, array)


def test_elements_are_a_view_of_the_body() -> None:
    body = bytearray(saved(np.zeros(4, np.float32)))
    array = read_npy(body, "it")
    body[-4:] = np.float32(7).tobytes()
    assert array.tolist() == [0, 0, 0, 7]


def test_later_versions_and_other_writers_are_read() -> None:
    header = b"{ \"shape\": ( 2L , ),\"fortran_order\" :False, 'descr': '<i2'}"
    for version in (1, 2, 3):
        assert read_npy(with_header(header, b"\1\0\2\0", version), "it").tolist() == [1, 2]


def test_a_body_is_the_models_only_input() -> None:
    payload = decode_npy(saved(np.ones((2, 3))), one("FP16", 3), RULES)
    assert payload.arrays["IN"].dtype == np.float16
    with pytest.raises(InvalidRequest, match="a body in application/x-npy needs a model with one input"):
        decode_npy(saved(np.ones(1)), model({"A": ("FP32", ()), "B": ("FP32", ())}), RULES)


HEADER = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "it is not an array in numpy's format"),
        (b"[1,2]", "it is not an array in numpy's format"),
        (b"\x93NUMPY\x01\x00", "it is not an array in numpy's format"),
        (saved(np.ones(3))[:-1], "3 elements of 8 bytes for shape \\[3\\] are 24 bytes, but there are 23"),
        (saved(np.ones(3)) + b"x", "24 bytes, but there are 25"),
        (saved(np.ones(3))[:60], "too long or cut off"),
        (with_header(HEADER, version=4), "unknown version"),
        (with_header(HEADER.replace(b"(1,)", b"(999999999999999999,)")), "bytes, but there are 0"),
        (
            with_header(HEADER.replace(b"(1,)", b"(" + b"1," * 33 + b")"), b"1234"),
            "has no 'shape', or an invalid one",
        ),
        (with_header(HEADER.replace(b"(1,)", b"(1 1,)")), "has no 'shape', or an invalid one"),
        (with_header(HEADER.replace(b"(1,)", b"(-1,)")), "has no 'shape', or an invalid one"),
        (with_header(HEADER.replace(b"shape", b"sharp")), "has no 'shape'"),
        (with_header(HEADER.replace(b"fortran", b"cobol")), "has no 'fortran_order'"),
        (with_header(HEADER.replace(b"descr", b"type")), "no 'descr'"),
        (with_header(HEADER.replace(b"<f4", b"<c8")), "got elements of type c8"),
        (with_header(HEADER.replace(b"<f4", b"<f3")), "got elements of type f3"),
        (with_header(HEADER.replace(b"<f4", b"<M8")), "got elements of type M8"),
        (with_header(HEADER.replace(b"<f4", b"<U0").replace(b"(1,)", b"(1000000000000,)")), "got elements of type U0"),
        (with_header(HEADER.replace(b"(1,)", b"(0, 9999999999, 9999999999)")), "no array can have the shape"),
        (with_header(HEADER.replace(b"<f4", b"|V4")), "got elements of type V4"),
        (saved(np.zeros(1, [("a", "<f4")])), "a structured array"),
    ],
)
def test_a_broken_file_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read_npy(body, "it")


class Explosive:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("it was unpickled",))


def test_objects_are_never_unpickled() -> None:
    for body in (saved(np.array([Explosive()], object), allow_pickle=True), saved(np.array([1, "a"], object))):
        with pytest.raises(InvalidRequest, match="nothing is ever unpickled here"):
            read_npy(body, "it")
    with pytest.raises(InvalidRequest, match="not an array in numpy's format"):
        read_npy(pickle.dumps([1, 2, 3]), "it")


def test_numpy_loads_the_encoded_outputs() -> None:
    for datatype, values in (("FP32", [[1, np.nan]]), ("UINT64", [2**64 - 1]), ("BOOL", [[True]]), ("BF16", [[0.5]])):
        written = np.load(io.BytesIO(b"".join(encode_npy([column("A", datatype, values)]))), allow_pickle=False)
        np.testing.assert_array_equal(written, values)
    strings = np.load(
        io.BytesIO(b"".join(encode_npy([column("A", "BYTES", [b"a", b"\xff\0b", b""])]))), allow_pickle=False
    )
    assert strings.tolist() == [[b"a"], [b"\xff\0b"], [b""]]


def test_outputs_that_the_format_cannot_hold_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="output 'A' has strings that end in NUL"):
        b"".join(encode_npy([column("A", "BYTES", [b"a\0"])]))
    with pytest.raises(InvalidRequest, match="differ much in length"):
        b"".join(encode_npy([column("A", "BYTES", [b"a" * (1 << 20)] + [b""] * 300)]))
    with pytest.raises(InvalidRequest, match="holds one array, the model has the outputs 'A', 'B'"):
        b"".join(encode_npy([column("A", "FP32", [1]), column("B", "FP32", [1])]))


def test_an_array_survives_encoding_and_decoding() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    np.testing.assert_array_equal(read_npy(write_npy(array), "it"), array)
