"""The table of formats, and that all formats decode what they encode."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.http.payloads.payload_models import RULES, model
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.formats import (
    FORMATS,
    JSON,
    NPY,
    NPZ,
    Format,
    NotAcceptable,
    UnsupportedMediaType,
    encoder_of,
    format_for,
    format_of,
)
from trident.core.http.payloads.payload import DecodedPayload, output_columns
from trident.core.inference.response import OutputTensor
from trident.core.inference.tensors import BY_NAME, DATATYPES, Array, bytes_array


def test_a_content_type_has_its_format() -> None:
    assert format_of("Application/JSON; charset=utf-8") is JSON
    assert format_of("application/x-npz; charset=latin-1") is NPZ
    assert format_of("application/jsonl") is format_of("application/jsonlines")
    with pytest.raises(UnsupportedMediaType, match="'image/png' is not supported, supported are: application/json, te"):
        format_of("image/png")
    with pytest.raises(UnsupportedMediaType, match="charset 'utf-16' of Content-Type 'text/csv' is not supported"):
        format_of("text/csv; charset=utf-16")
    with pytest.raises(InvalidRequest, match="is not understood"):
        format_of("csv")


def test_accept_selects_a_media_type_with_an_encoder() -> None:
    assert format_for(None) == "application/json"
    assert format_for("*/*", default="text/csv") == "text/csv"
    assert format_for("application/x-ndjson") == "application/x-ndjson"
    assert format_for("image/png, application/x-npy;q=0.1") == "application/x-npy"
    assert encoder_of("application/x-npy") is NPY.encode
    with pytest.raises(NotAcceptable, match="none of 'image/png' can be sent, available are: application/json, text/c"):
        format_for("image/png")


def test_a_format_of_one_array_is_not_offered_for_several_outputs() -> None:
    assert format_for("application/x-npy, text/csv;q=0.1", outputs=2) == "text/csv"
    assert format_for(None, "application/x-npy", outputs=2) == "application/json"
    with pytest.raises(NotAcceptable, match=r"none of 'application/x-npy' .* application/x-jsonl, application/x-npz$"):
        format_for("application/x-npy", outputs=2)


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
