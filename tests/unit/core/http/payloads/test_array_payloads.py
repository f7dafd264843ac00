from __future__ import annotations

import io
import pickle
import struct
import zipfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.http.payloads.payload_models import RULES, column, model, one
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.arrays import (
    decode_npy,
    decode_npz,
    decode_octets,
    decode_raw,
    dense_matrix,
    encode_npy,
    encode_npz,
    read_npy,
    write_npy,
)
from trident.core.http.payloads.payload import DecodeRules, decode_arrays
from trident.core.inference.tensors import Array

HEADER = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }"


# --- npy


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


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "it is not an array in numpy's format"),
        (b"[1,2]", "it is not an array in numpy's format"),
        (saved(np.ones(3))[:-1], "3 elements of 8 bytes for shape \\[3\\] are 24 bytes, but there are 23"),
        (saved(np.ones(3))[:60], "too long or cut off"),
        (with_header(HEADER, version=4), "unknown version"),
        (with_header(HEADER.replace(b"(1,)", b"(999999999999999999,)")), "bytes, but there are 0"),
        (with_header(HEADER.replace(b"(1,)", b"(1 1,)")), "has no 'shape', or an invalid one"),
        (with_header(HEADER.replace(b"shape", b"sharp")), "has no 'shape'"),
        (with_header(HEADER.replace(b"fortran", b"cobol")), "has no 'fortran_order'"),
        (with_header(HEADER.replace(b"descr", b"type")), "no 'descr'"),
        (with_header(HEADER.replace(b"<f4", b"<c8")), "got elements of type c8"),
        (with_header(HEADER.replace(b"<f4", b"<U0").replace(b"(1,)", b"(1000000000000,)")), "got elements of type U0"),
        (with_header(HEADER.replace(b"(1,)", b"(0, 9999999999, 9999999999)")), "no array can have the shape"),
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


def test_numpy_arrays_and_archives_are_written_for_numpy() -> None:
    for datatype, values in (("FP32", [[1, np.nan]]), ("UINT64", [2**64 - 1]), ("BOOL", [[True]]), ("BF16", [[0.5]])):
        written = np.load(io.BytesIO(encode_npy([column("A", datatype, values)])), allow_pickle=False)
        np.testing.assert_array_equal(written, values)
    strings = np.load(io.BytesIO(encode_npy([column("A", "BYTES", [b"a", b"\xff\0b", b""])])), allow_pickle=False)
    assert strings.tolist() == [[b"a"], [b"\xff\0b"], [b""]]
    columns = [column("A", "FP32", [[1, 2]]), column("B/C", "BYTES", [b"x"])]
    with np.load(io.BytesIO(encode_npz(columns)), allow_pickle=False) as loaded:
        assert {name: loaded[name].tolist() for name in loaded.files} == {"A": [[1, 2]], "B/C": [[b"x"]]}
    assert encode_npz(columns) == encode_npz(columns)


def test_outputs_that_the_format_cannot_hold_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="output 'A' has strings that end in NUL"):
        encode_npy([column("A", "BYTES", [b"a\0"])])
    with pytest.raises(InvalidRequest, match="differ much in length"):
        encode_npy([column("A", "BYTES", [b"a" * (1 << 20)] + [b""] * 300)])
    with pytest.raises(InvalidRequest, match="holds one array, the model has the outputs 'A', 'B'"):
        encode_npy([column("A", "FP32", [1]), column("B", "FP32", [1])])


@pytest.mark.parametrize("code", [0xD800, 0xDFFF, 0x110000, 0xFFFFFFFF])
@pytest.mark.parametrize("order", ["<", ">"])
def test_texts_with_invalid_code_points_are_refused(code: int, order: str) -> None:
    texts = np.array(["ab", "cd"], f"{order}U2").reshape(2, 1)
    wrong = texts.copy()
    wrong.view(f"{order}u4")[1, 1] = code
    assert decode_npy(write_npy(texts), one("BYTES", 1), RULES).arrays["IN"].tolist() == [[b"ab"], [b"cd"]]
    with pytest.raises(InvalidRequest, match="the body: a text has a code that is not a Unicode character"):
        decode_npy(write_npy(wrong), one("BYTES", 1), RULES)
    with pytest.raises(InvalidRequest, match="array 'A': a text has a code that is not a Unicode character"):
        decode_npz(saved_npz(A=wrong), model({"A": ("BYTES", (1,))}), RULES)


# --- npz


SPEC = model({"A": ("FP32", (2,)), "B": ("INT64", (1,))}, optional="B")


def saved_npz(**arrays: Any) -> bytes:
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


A = write_npy(np.ones((1, 2), np.float32))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "it has no directory at its end"),
        (b"[1,2]", "it has no directory at its end"),
        (b"PK\x05\x06" + bytes(18), "the archive: input 'A' is missing"),
        (saved_npz(A=np.ones((1, 2)), X=np.ones(1)), "the archive: 'X' is not an input of model 'm'"),
        (archive(("A.npy", A), ("A", A)), "the archive has the array 'A' twice"),
        (archive(("A.npy", b"junk")), "array 'A' is not an array in numpy's format"),
        (archive(("A.npy", A), method=zipfile.ZIP_LZMA), "compressed in a way that numpy does not write"),
        (saved_npz(A=np.array([object()])), "array 'A': arrays of Python objects are pickled"),
        (saved_npz(A=np.ones((1, 3))), r"input 'A': expected shape \[-1,2\], got \[1,3\]"),
    ],
)
def test_an_error_names_its_cause(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        decode_npz(body, SPEC, RULES)


def test_zip_bomb_is_refused_by_its_directory() -> None:
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


# --- matrices in the format of scipy.sparse.save_npz. They are written by hand, because the tests do not need scipy


MATRIX = [[0, 0, 3], [4, 5, 0]]
COMPRESSED = {"data": np.array([3, 4, 5.0]), "indices": np.array([2, 0, 1], np.int32), "shape": np.array([2, 3])}
CSR = {**COMPRESSED, "indptr": np.array([0, 1, 3], np.int32), "format": np.array(b"csr")}
CSC = {
    "data": np.array([4, 5, 3.0]),
    "indices": np.array([1, 1, 0], np.int32),
    "indptr": np.array([0, 1, 2, 3], np.int32),
    "shape": np.array([2, 3]),
    "format": np.array(b"csc"),
}
COO = {
    "data": np.array([5, 3, 4.0]),
    "row": np.array([1, 0, 1], np.int32),
    "col": np.array([1, 2, 0], np.int32),
    "shape": np.array([2, 3]),
    "format": np.array(b"coo"),
}
LIMIT = 1 << 20


def dense(arrays: dict[str, Array], **changes: Any) -> Array:
    changed = {name: np.asarray(value) for name, value in changes.items() if value is not None}
    kept = {name: array for name, array in arrays.items() if name not in changes}
    return dense_matrix({**kept, **changed}, 4, LIMIT)


@pytest.mark.parametrize("arrays", [CSR, CSC, COO])
def test_each_format_becomes_a_dense_matrix(arrays: dict[str, Array]) -> None:
    assert dense(arrays).tolist() == MATRIX
    assert dense(arrays, format="".join(map(chr, arrays["format"].item()))).tolist() == MATRIX
    assert dense(arrays, data=np.array([True] * 3)).tolist() == (np.array(MATRIX) > 0).tolist()
    assert dense(arrays, data=arrays["data"].astype(np.float16)).dtype == np.float16


@pytest.mark.parametrize(
    ("arrays", "changes", "message"),
    [
        (CSR, {"format": b"bsr"}, "has a format that is not supported, supported are: csr, csc, coo"),
        (CSR, {"format": 5}, "has a format that is not supported"),
        (CSR, {"shape": [2, 3, 4]}, "'shape' must be the numbers of rows and columns"),
        (CSR, {"shape": [-2, -3]}, "'shape' must be the numbers of rows and columns"),
        (CSR, {"shape": [2**62, 2**62]}, f"at most {LIMIT} are allowed"),
        (CSR, {"shape": [1, LIMIT // 8 + 1]}, f"is {LIMIT + 8} bytes when it is dense, at most {LIMIT} are"),
        (COO, {"shape": [2**63 - 1, 1]}, f"at most {LIMIT} are allowed"),
        (CSR, {"data": [[3, 4, 5]]}, "'data' must be an array of one dimension, it has 2"),
        (CSR, {"data": ["a", "b", "c"]}, "'data' must be numbers or booleans"),
        (CSR, {"data": np.ones(LIMIT // 8 + 1, np.int8)}, f"values, at most {LIMIT // 8} are allowed"),
        (CSR, {"data": [1, 2]}, "'indices' and 'data' must have the same length"),
        (CSR, {"indices": None}, "'indices' must be an array of one dimension, there is none"),
        (CSR, {"indices": [2, 0, 3]}, "'indices' has a number that is not from 0 to 2"),
        (CSR, {"indices": np.array([2, 0, 2**64 - 1], np.uint64)}, "'indices' has a number that is not from 0 to 2"),
        (CSR, {"indices": [2.0, 0.0, 1.0]}, "'indices' must be whole numbers"),
        (CSC, {"indices": [1, 1, 2]}, "'indices' has a number that is not from 0 to 1"),
        (CSR, {"indptr": [0, 1]}, "'indptr' must have 3 numbers, it has 2"),
        (CSR, {"indptr": [0, 1, 4]}, "'indptr' has a number that is not from 0 to 3"),
        (CSR, {"indptr": [0, 3, 1]}, "'indptr' must begin at 0 and never decrease"),
        (COO, {"row": [1, 0]}, "'row', 'col' and 'data' must have the same length"),
        (COO, {"col": [1, 3, 0]}, "'col' has a number that is not from 0 to 2"),
    ],
)
def test_an_error_names_the_array(arrays: dict[str, Array], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        dense(arrays, **changes)


@pytest.mark.parametrize("arrays", [CSR, CSC, COO, {**CSR, "_is_array": np.array(True)}])
def test_archive_with_a_matrix_must_be_the_only_input(arrays: dict[str, Array]) -> None:
    payload = decode_npz(compressed(**arrays), one("FP32", 3), RULES)
    assert payload.arrays["IN"].tolist() == MATRIX
    assert payload.arrays["IN"].dtype == np.float32
    assert (payload.count, payload.stacked) == (2, True)


def test_a_matrix_with_another_shape_than_the_input_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"input 'IN': expected shape \[-1,4\], got \[2,3\]"):
        decode_npz(compressed(**CSR), one("FP32", 4), RULES)
    with pytest.raises(InvalidRequest, match="a sparse matrix needs a model with one input"):
        decode_npz(compressed(**CSR), model({"A": ("FP32", (3,)), "B": ("FP32", (3,))}), RULES)
    with pytest.raises(InvalidRequest, match="at most 200 are allowed"):
        decode_npz(compressed(**{**CSR, "shape": np.array([2, 30])}), one("FP32", -1), DecodeRules(max_input_size=200))


def test_inputs_may_have_the_names_of_a_matrix_arrays() -> None:
    spec = model({"data": ("FP32", (1,)), "shape": ("FP32", (1,)), "format": ("FP32", (1,))})
    payload = decode_npz(compressed(**{name: np.ones((2, 1)) for name in spec.inputs}), spec, RULES)
    assert payload.arrays.keys() == spec.inputs.keys()


# --- raw


@pytest.mark.parametrize(
    ("body", "spec", "expected"),
    [
        (np.array([1, 2], np.float32).tobytes(), one("FP32", 2), [[1, 2]]),
        (np.array([1, 2, 3, 4], np.float32).tobytes(), one("FP32", 2), [[1, 2], [3, 4]]),
        (b"\1\0", one("INT16", 1), [[1]]),
        (b"\1\2\3\4", one("UINT8", -1, 2), [[[1, 2], [3, 4]]]),
        (b"\1\0\1", one("BOOL", 1), [[True], [False], [True]]),
        (b"\xff\xd8jpeg", one("BYTES", 1), [[b"\xff\xd8jpeg"]]),
        (b"text", one("BYTES", -1), [[b"text"]]),
    ],
)
def test_raw_bytes_fill_the_only_input(body: bytes, spec: ModelSpec, expected: list[object]) -> None:
    payload = decode_raw(memoryview(body), spec, RULES)
    assert payload.arrays["IN"].tolist() == expected
    assert payload.arrays["IN"].dtype == spec.inputs["IN"].datatype.dtype
    assert (payload.count, payload.stacked) == (len(expected), True)


def test_a_document_without_a_type_is_decoded_or_its_error_reported() -> None:
    with pytest.raises(InvalidRequest, match="instance 0, input 'IN': expected a list of 2, got one of 3"):
        decode_octets(b'{"instances":[[1,2,3]]} ', one("FP32", 2), RULES)
    payload = decode_octets(b'{"instances":["a",{"b64":"AAE="}]}', one("BYTES", 1), RULES)
    assert payload.arrays["IN"].tolist() == [[b"a"], [b"\0\1"]]


@pytest.mark.parametrize("body", [b"[\0\0\0\1\0\0\0", b'{"a":"instances"}   ', b"[[1,2],["])
def test_bytes_resembling_json_are_decoded_as_bytes(body: bytes) -> None:
    array = decode_octets(body, one("UINT32", -1), RULES).arrays["IN"]
    assert array.tobytes() == body


@pytest.mark.parametrize("body", [b'["a",1]', b'{"text":"the \\"instances\\""}', b'{"a":"instances"}'])
def test_a_string_input_may_be_json_text(body: bytes) -> None:
    assert decode_octets(body, one("BYTES", 1), RULES).arrays["IN"].tolist() == [[body]]


@pytest.mark.parametrize(
    ("body", "spec", "message"),
    [
        (b"", one("FP32", 2), "the body is empty"),
        (b"123", one("FP32", 2), "input 'IN': expected a multiple of 8 bytes, got 3"),
        (b"1234", one("FP32", -1, -1), "raw bytes cannot determine 2 variable dimensions"),
        (b"\1\2", one("BOOL", 2), "expected bytes that are 0 or 1"),
        (b"12", one("BYTES", 2), "raw bytes are one string, input 'IN' needs 2"),
        (b"12", one("FP32", 0), "expected a multiple of 0 bytes"),
        (b"12", model({"A": ("FP32", ()), "B": ("FP32", ())}), "a body of raw bytes needs a model with one input"),
    ],
)
def test_an_error_names_the_input(body: bytes, spec: ModelSpec, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        decode_raw(body, spec, RULES)


# --- inputs


@pytest.mark.parametrize(
    ("shape", "spec", "count"),
    [
        ((3, 2), one("FP32", 2, batch=0), 3),
        ((2,), one("FP32", 2, batch=0), None),
        ((5, 2), one("FP32", -1, 2, batch=0), None),
        ((3, 5, 2), one("FP32", -1, 2, batch=0), 3),
        ((), one("FP32", batch=0), None),
        ((3,), one("FP32", batch=0), 3),
    ],
)
def test_a_model_without_batching_gets_instances_or_one_whole_tensor(
    shape: tuple[int, ...], spec: ModelSpec, count: int | None
) -> None:
    payload = decode_arrays({"IN": np.ones(shape)}, spec)
    assert (payload.count, payload.stacked) == (count, False)


@pytest.mark.parametrize(
    ("array", "spec", "message"),
    [
        (np.ones(2), one("FP32", 2), r"input 'IN': expected shape \[-1,2\], got \[2\]"),
        (np.ones((1, 3)), one("FP32", 2, batch=0), r"input 'IN': expected shape \[-1,2\] or \[2\], got \[1,3\]"),
        (np.ones((0, 2)), one("FP32", 2), "input 'IN' has no rows"),
        (np.ones((10**12, 0)), one("FP32", -1), "input 'IN' has 1000000000000 rows without an element"),
        (np.array([["a"]]), one("FP32", 1), "input 'IN': expected elements of FP32, got strings"),
        (np.ones((1, 1)), one("BYTES", 1), "input 'IN': expected elements of BYTES, got an array of float64"),
        (np.ones((1, 1)), one("BOOL", 1), "input 'IN': expected elements of BOOL, got an array of float64"),
        (np.array([[1], [300]]), one("INT8", 1), r"input 'IN', element \[1,0\]: expected an integer"),
        (np.ones((1, 1)), model({"A": ("FP32", (1,))}), "the arrays: 'IN' is not an input"),
    ],
)
def test_a_wrong_array_names_the_input(array: Array, spec: ModelSpec, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        decode_arrays({"IN": array}, spec)
