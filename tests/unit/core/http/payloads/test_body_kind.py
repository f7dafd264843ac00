from __future__ import annotations

import json

import pytest

from tests.unit.core.http.payloads.payload_models import model, one
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.arrays import decode_octets, decode_raw
from trident.core.http.payloads.formats import (
    CSV,
    JSON,
    JSONLINES,
    NPY,
    NPZ,
    BodyKind,
    Decode,
    UnsupportedMediaType,
    body_kind,
    known_format,
    starts_as_v2,
)
from trident.core.inference.tensors import Buffer

V2 = b'{"inputs":[{"name":"IN"}]}'
ONE = one("FP32", 2)
OCTETS = "application/octet-stream"


def decoder(content_type: str, body: Buffer, spec: ModelSpec) -> Decode | None:
    """The decoder of the body; None for a v2 body."""
    kind = body_kind(content_type, body, spec, "a type of the platform's")
    return None if kind is BodyKind.V2 else kind.decode


@pytest.mark.parametrize(
    ("content_type", "decode"),
    [
        ("application/json", JSON.decode),
        ("Application/JSON; charset=UTF-8", JSON.decode),
        ("text/csv", CSV.decode),
        ("text/csv;header=absent", CSV.decode),
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


@pytest.mark.parametrize(
    "body", [b'{"instances":[[1,2]]}', b'{"inputs":{"IN":[[1,2]]}}', b'{"inputs":[[1,2]]}', b"[[1,2]]"]
)
def test_other_json_has_instances(body: bytes) -> None:
    assert decoder("application/json", body, ONE) is JSON.decode


@pytest.mark.parametrize("body", [b"{", b"{}", b"nonsense"])
def test_json_without_a_known_form_is_v2(body: bytes) -> None:
    assert decoder("application/json", body, ONE) is None


def test_bytes_that_begin_like_json_are_bytes() -> None:
    for body in (b'{"text":"hello"}', b'{"inputs":"hello"}', b"{\x00\x80?", b'x{"inputs":[1]}'):
        assert decoder(OCTETS, body, ONE) is decode_raw


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


def test_numpy_types_are_never_json() -> None:
    assert decoder("application/x-npy", V2, ONE) is NPY.decode


@pytest.mark.parametrize("content_type", ["image/png", "text/plain"])
def test_an_unknown_type_is_refused_with_a_list(content_type: str) -> None:
    with pytest.raises(UnsupportedMediaType) as caught:
        decoder(content_type, b"[[1,2]]", ONE)
    for name in (content_type, "text/csv", "application/x-npz", "a type of the platform's", OCTETS):
        assert name in caught.value.message


def test_bytes_are_refused_by_a_model_with_two_inputs() -> None:
    with pytest.raises(UnsupportedMediaType, match="one input"):
        decoder("", b"\0\0\0\0", model({"A": ("FP32", (1,)), "B": ("FP32", (1,))}))


def test_an_unsupported_charset_is_refused() -> None:
    with pytest.raises(UnsupportedMediaType, match="charset 'latin-1'"):
        decoder("text/csv; charset=latin-1", b"1,2", ONE)


def test_a_malformed_content_type_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="the Content-Type header is not understood"):
        decoder("csv", b"1,2", ONE)


@pytest.mark.parametrize(
    ("body", "starts"),
    [
        (V2, True),
        (b'{"inputs": [ {"name":"IN"}]}', True),
        (b'{"inputs":[]}', True),
        (b'{"inputs": [1]}', False),
        (b'{"inputs":[[{"b64":""}]]}', False),
        (b' { "id" : "a" , "inputs" : [', True),
        (b'{"inputs":{"IN":[1]}}', False),
        (b'{"instances":[1],"inputs":[]}', False),
        (b'[{"inputs":[]}]', False),
        (b"", False),
    ],
)
def test_a_v2_document_is_recognized_by_its_start(body: bytes, starts: bool) -> None:
    assert starts_as_v2(body) is starts
    assert starts_as_v2(memoryview(body)) is starts


def test_each_known_type_has_its_format() -> None:
    assert known_format("application/json; charset=utf-8") is JSON
    assert known_format("TEXT/CSV") is CSV
    for content_type in ("", OCTETS, "image/png", "text/csv;charset=utf-16", ";;;"):
        assert known_format(content_type) is None
