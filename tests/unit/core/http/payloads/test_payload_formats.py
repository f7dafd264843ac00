"""The table of formats, and that all formats decode what they encode."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.http.payloads.payload_models import RULES, model, one
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.http.body import choose
from trident.core.http.payloads.arrays import decode_octets, decode_raw
from trident.core.http.payloads.inference import (
    CSV,
    FORMATS,
    JSON,
    JSONLINES,
    NPY,
    NPZ,
    Decode,
    Format,
    UnsupportedMediaType,
    body_format,
)
from trident.core.http.payloads.payload import DecodedPayload, output_columns
from trident.core.inference.response import OutputTensor
from trident.core.inference.tensors import BY_NAME, DATATYPES, Array, Buffer, bytes_array


def elements(datatype: str) -> st.SearchStrategy[Any]:
    row = BY_NAME[datatype]
    if datatype == "BYTES":
        # numpy's fixed-width strings cannot end in NUL; npy has its own test that refuses them.
        return st.one_of(st.binary(max_size=6), st.text(max_size=4).map(str.encode)).filter(lambda b: b[-1:] != b"\0")
    if datatype == "BOOL":
        return st.booleans()
    if row.kind == "f":
        return st.floats(width=row.size * 8)
    limits = np.iinfo(row.dtype)
    # BF16: any bit pattern, except that all NaNs become the same one.
    return st.integers(int(limits.min), int(limits.max))


@st.composite
def columns_of(draw: st.DrawFn, datatype: str, rows: int, width: int) -> Array:
    values = draw(st.lists(elements(datatype), min_size=rows * width, max_size=rows * width))
    if datatype == "BYTES":
        return bytes_array(values, (rows, width))
    return np.array(values, BY_NAME[datatype].dtype).reshape(rows, width)


def same(got: Array, sent: Array, datatype: str) -> bool:
    if datatype == "BF16":
        got, sent = ((a.astype(np.uint32) << np.uint32(16)).view(np.float32) for a in (got, sent))
    return bool(np.array_equal(got, sent, equal_nan=datatype in ("BF16", "FP16", "FP32", "FP64")))


def encoded(row: Format, tensors: dict[str, tuple[str, Array]]) -> bytes:
    (count,) = {len(array) for _, array in tensors.values()}
    outputs = [OutputTensor(name, datatype, array.shape, array) for name, (datatype, array) in tensors.items()]
    body = b"".join(row.encode(output_columns([outputs], DecodedPayload(arrays={}, count=count, stacked=True))))
    return orjson.dumps({"instances": orjson.loads(body)["predictions"]}) if row is JSON else body


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.media_types[0])
@pytest.mark.parametrize("datatype", [row.name for row in DATATYPES])
@settings(max_examples=10)
@given(drawn=st.data())
def test_one_tensor_of_each_datatype_survives(row: Format, datatype: str, drawn: st.DataObject) -> None:
    rows, width = drawn.draw(st.integers(1, 4)), drawn.draw(st.integers(1, 3))
    array = drawn.draw(columns_of(datatype, rows, width))
    body = encoded(row, {"IN": (datatype, array)})
    payload = row.decode(body, model({"IN": (datatype, (width,))}), RULES)
    assert payload.count == rows
    assert payload.arrays["IN"].dtype == array.dtype
    assert same(payload.arrays["IN"], array, datatype)


@pytest.mark.parametrize("row", [row for row in FORMATS if row is not NPY], ids=lambda row: row.media_types[0])
@settings(max_examples=20)
@given(drawn=st.data())
def test_several_tensors_survive(row: Format, drawn: st.DataObject) -> None:
    names = drawn.draw(st.lists(st.sampled_from([d.name for d in DATATYPES]), min_size=2, max_size=4))
    rows = drawn.draw(st.integers(1, 3))
    tensors = {
        f"T{i}": (datatype, drawn.draw(columns_of(datatype, rows, drawn.draw(st.integers(1, 2)))))
        for i, datatype in enumerate(names)
    }
    spec = model({name: (datatype, array.shape[1:]) for name, (datatype, array) in tensors.items()})
    payload = row.decode(encoded(row, tensors), spec, RULES)
    assert payload.arrays.keys() == tensors.keys()
    for name, (datatype, array) in tensors.items():
        assert same(payload.arrays[name], array, datatype)


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.media_types[0])
@settings(max_examples=60)
@given(
    body=st.one_of(
        st.binary(max_size=60), st.text("[]{},:\"'0123456789.eE+-naNInfty \r\n", max_size=60).map(str.encode)
    )
)
def test_any_other_body_raises_invalid_request(row: Format, body: bytes) -> None:
    for spec in (model({"IN": ("FP32", (2,))}), model({"IN": ("INT8", (-1,))}), model({"IN": ("BYTES", (1,))})):
        try:
            payload = row.decode(body, spec, RULES)
        except InvalidRequest:
            continue
        assert payload.arrays["IN"].shape[0] == payload.count


# --- media type


SUPPORTED = ("application/json", "text/csv", "application/x-npy")


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, "application/json"),
        ("*/*", "application/json"),
        ("text/csv", "text/csv"),
        ("text/*", "text/csv"),
        ("application/x-npy, text/csv", "application/x-npy"),
        ("text/csv;q=0.5, application/x-npy;q=0.9", "application/x-npy"),
        ("application/json;q=0, */*", "text/csv"),
        ("*/*;q=0.1, text/csv;q=0.2", "text/csv"),
        ("text/csv;q=0, text/*", None),
        ("image/png", None),
        ("application/*;q=0.3, application/x-npy;q=0.2", "application/json"),
        ("*;q=.1 , text/csv;q=.2", "text/csv"),
        ("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", "application/json"),
        ("text/csv;q=1.0000, */*;q=0.", "text/csv"),
        ("text/csv;q=2, application/x-npy;q=.1", "application/x-npy"),
        ("json, */csv, text/csv", "text/csv"),
    ],
)
def test_the_preferred_supported_type_is_chosen(accept: str | None, chosen: str | None) -> None:
    assert choose(accept, SUPPORTED) == chosen


# --- body kind


V2 = b'{"inputs":[{"name":"IN"}]}'
ONE = one("FP32", 2)
OCTETS = "application/octet-stream"


def decoder(content_type: str, body: Buffer, spec: ModelSpec) -> Decode | None:
    """The decoder of the body; None for a v2 body."""
    found = body_format(content_type, body, spec, "a type of the platform's")
    return None if found is None else found.decode


@pytest.mark.parametrize(
    ("content_type", "decode"),
    [
        ("application/json", JSON.decode),
        ("text/csv", CSV.decode),
        ("application/jsonlines", JSONLINES.decode),
        ("application/x-npy", NPY.decode),
        ("application/x-npz", NPZ.decode),
        (OCTETS, decode_octets),
        ("", decode_octets),
    ],
)
def test_the_content_type_decides_the_kind(content_type: str, decode: Decode) -> None:
    assert decoder(content_type, b"[[1,2]]", ONE) is decode


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "application/json;charset=utf-8", "", OCTETS, "image/png", "text/plain", "garbage"],
)
@pytest.mark.parametrize(
    "body",
    [
        V2,
        memoryview(V2),
        json.dumps(json.loads(V2)).encode(),
        b' {\n"id": "a", "inputs": [{}]}',
        b'{"parameters":{"a":[1]},"inputs":[{"name":"IN"}]}',
    ],
)
def test_v2_json_is_recognized_under_vague_types(content_type: str, body: Buffer) -> None:
    assert decoder(content_type, body, ONE) is None


def test_numpy_types_and_bytes_that_begin_like_json_are_no_json() -> None:
    for body in (b'{"text":"hello"}', b'{"inputs":"hello"}', b"{\x00\x80?", b'x{"inputs":[1]}'):
        assert decoder(OCTETS, body, ONE) is decode_raw
    assert decoder("application/x-npy", V2, ONE) is NPY.decode
    with pytest.raises(UnsupportedMediaType, match="one input"):
        decoder("", b"\0\0\0\0", model({"A": ("FP32", (1,)), "B": ("FP32", (1,))}))


@pytest.mark.parametrize("content_type", ["text/csv", "application/jsonlines"])
def test_a_v2_request_may_be_a_record_of_a_batch_job(content_type: str) -> None:
    assert decoder(content_type, V2, ONE) is None
    assert decoder(content_type, V2 + b"\n", ONE) is None
    assert decoder(content_type, V2 + b"\n" + V2, ONE) is not None
    assert decoder(content_type, V2, model({"inputs": ("FP32", (2,))})) is not None


@pytest.mark.parametrize("body", [b' {"instances":[[1,2]]}', b'{"inputs":{"IN":[[1,2]]}}'])
def test_objects_with_instances_are_recognized_under_vague_types(body: bytes) -> None:
    two = model({"A": ("FP32", (1,)), "B": ("FP32", (1,))})
    for content_type in ("", OCTETS):
        assert decoder(content_type, body, ONE) is decode_octets
        assert decoder(content_type, body, two) is JSON.decode
        assert decoder(content_type, b'[{"A":1,"B":2}]', two) is JSON.decode
    for content_type in ("image/png", "application/x-www-form-urlencoded"):
        assert decoder(content_type, body, ONE) is JSON.decode
    with pytest.raises(UnsupportedMediaType, match="charset 'latin-1'"):
        decoder("application/json; charset=latin-1", body, ONE)


def test_a_content_type_of_another_charset_or_form_is_refused() -> None:
    with pytest.raises(UnsupportedMediaType, match="charset 'latin-1'"):
        decoder("text/csv; charset=latin-1", b"1,2", ONE)
    with pytest.raises(InvalidRequest, match="the Content-Type header is not understood"):
        decoder("csv", b"1,2", ONE)
