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
from tests.unit.fake_engine import FakeEngine, FakeModel
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.application import V2Application
from trident.core.http.body import choose
from trident.core.http.front_end import HttpOptions
from trident.core.http.payloads.arrays import decode_octets, decode_raw
from trident.core.http.payloads.inference import (
    FORMATS,
    JSON,
    NPY,
    AnswerType,
    Decode,
    Format,
    NotAcceptable,
    PayloadResult,
    UnsupportedMediaType,
    body_format,
    infer_lines,
    infer_payload,
)
from trident.core.http.payloads.payload import DecodedPayload, output_columns
from trident.core.http.reply import Reply
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OutputTensor
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
    body = row.encode(output_columns([outputs], DecodedPayload(arrays={}, count=count, stacked=True)))
    return orjson.dumps({"instances": orjson.loads(body)["predictions"]}) if row is JSON else body


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.media_types[0])
@pytest.mark.parametrize("datatype", [row.name for row in DATATYPES])
@settings(max_examples=10)
@given(drawn=st.data())
def test_every_datatype_round_trips(row: Format, datatype: str, drawn: st.DataObject) -> None:
    rows, width = drawn.draw(st.integers(1, 4)), drawn.draw(st.integers(1, 3))
    array = drawn.draw(columns_of(datatype, rows, width))
    body = encoded(row, {"IN": (datatype, array)})
    payload = row.decode(body, model({"IN": (datatype, (width,))}), RULES)
    assert payload.count == rows
    assert payload.arrays["IN"].dtype == array.dtype
    assert same(payload.arrays["IN"], array, datatype)


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
        ("application/x-npy, text/csv", "application/x-npy"),
        ("text/csv;q=0.5, application/x-npy;q=0.9", "application/x-npy"),
        ("application/json;q=0, */*", "text/csv"),
        ("*/*;q=0.1, text/csv;q=0.2", "text/csv"),
        ("text/csv;q=0, text/*", None),
        ("application/*;q=0.3, application/x-npy;q=0.2", "application/json"),
        ("*;q=.1 , text/csv;q=.2", "text/csv"),
        ("text/csv;q=x, application/x-npy;q=.1", "application/x-npy"),
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


def test_bytes_resembling_json_are_not_json_under_other_types() -> None:
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


# --- payload inference


SPEC = one("FP32", 2, batch=2)


class Bench:
    """An engine that returns its inputs. `seen` are the requests that reached it."""

    def __init__(self, **options: Any) -> None:
        self.seen: list[InferenceRequest] = []
        self.engine = FakeEngine(self._echo)
        self.engine.versions["m"] = (1,)
        self.application = V2Application(self.engine, HttpOptions(**options), ThreadBridge())

    def infer(self, payload: DecodedPayload, spec: ModelSpec) -> PayloadResult:
        return infer_payload(self.application, {}, FakeModel(self.engine, spec), payload)

    def infer_lines(self, *lines: bytes, answer_type: AnswerType = lambda is_v2: None, **environ: Any) -> Reply:
        return infer_lines(self.application, environ, SPEC, list(lines), answer_type)

    def _echo(self, request: InferenceRequest) -> InferenceResponse:
        self.seen.append(request)
        given = request.inputs[0].data
        array = given if isinstance(given, np.ndarray) else np.frombuffer(given, np.float32)
        array = array.reshape(request.inputs[0].shape)
        output = OutputTensor("OUT", "FP32", array.shape, array)
        return InferenceResponse("m", 1, [output], id=request.id, parameters={"n": len(self.seen)})


def payload(array: Array, **more: Any) -> DecodedPayload:
    return DecodedPayload(arrays={"IN": array}, **{"count": len(array), "stacked": True, **more})


@pytest.mark.parametrize(
    ("batch", "stacked", "rows", "sizes"),
    [
        (8, True, 8, [(8, 2)]),
        (8, True, 20, [(8, 2), (8, 2), (4, 2)]),
        (0, False, 1, [(2,)]),
        (0, False, 40, [(2,)] * 40),
        (0, True, 40, [(40, 2)]),
    ],
)
def test_a_payload_is_split_by_the_models_batch_size(batch: int, stacked: bool, rows: int, sizes: list[Any]) -> None:
    bench = Bench()
    array = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    result = bench.infer(payload(array, stacked=stacked), one("FP32", 2, batch=batch))
    assert [request.inputs[0].shape for request in bench.seen] == sizes
    assert np.array_equal(result.columns[0].parts[0], array)
    assert result.parameters == {"n": 1}


# --- inference on request lines


def v2(*rows: list[int], **more: Any) -> bytes:
    data = [number for row in rows for number in row]
    item = {"name": "IN", "datatype": "FP32", "shape": [len(rows), 2], "data": data}
    return orjson.dumps({"inputs": [item], **more})


def instances(*rows: list[int], **more: Any) -> bytes:
    return orjson.dumps({"instances": rows, **more})


def body(reply: Reply) -> bytes:
    return b"".join(map(bytes, reply.body))


def kind(reply: Reply) -> str:
    return dict(reply.headers)["Content-Type"]


def test_each_document_is_answered_by_a_line_in_order() -> None:
    bench = Bench()
    lines = [v2([1, 2]), instances([3, 4], [5, 6], [7, 8]), b'{"inputs":{"IN":[[9,9]]}}', b"[[1,1]]"]
    reply = bench.infer_lines(*lines, v2([0, 0], id="last"))
    first, second, third, fourth, last = map(orjson.loads, body(reply).splitlines())
    assert kind(reply) == "application/jsonlines"
    assert body(reply).endswith(b"}\n")
    assert (first["outputs"][0]["data"], first["outputs"][0]["shape"]) == ([1, 2], [1, 2])
    assert second == {"predictions": [[3, 4], [5, 6], [7, 8]]}
    assert (third, fourth) == ({"outputs": [[9, 9]]}, [[1, 1]])
    assert last["id"] == "last"
    assert [request.inputs[0].shape[0] for request in bench.seen] == [1, 2, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("media_type", "expected"),
    [("text/csv", b"1.0,2.0\n3.0,4.0\n5.0,6.0\n"), ("application/jsonl", b"[1.0,2.0]\n[3.0,4.0]\n[5.0,6.0]\n")],
)
def test_rows_of_all_documents_are_joined_in_order(media_type: str, expected: bytes) -> None:
    reply = Bench().infer_lines(v2([1, 2]), instances([3, 4], [5, 6]), answer_type=lambda is_v2: media_type)
    assert (kind(reply), body(reply)) == (media_type, expected)


def test_each_request_has_its_own_parameters_and_the_shared_headers() -> None:
    bench = Bench(header_forward_pattern="^x-")
    bench.infer_lines(v2([1, 2], parameters={"a": 1}), instances([1, 2], parameters={"b": 2}), HTTP_X_TEAM="red")
    assert [request.parameters for request in bench.seen] == [{"a": 1, "x-team": "red"}, {"b": 2, "x-team": "red"}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (instances([1]), "line 2: instance 0, input 'IN': expected a list of 2, got one of 1"),
        (b'{"inputs":[{"name":"IN"}]}', "line 2: Input must set only one of "),
        (b"{", "line 2: failed to parse the request JSON buffer: "),
        (v2([1, 2], parameters={"binary_data_output": True}), "line 2: an answer of lines cannot have binary outputs"),
    ],
)
def test_an_invalid_document_is_named_by_its_line(line: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Bench().infer_lines(v2([1, 2]), line)
    assert caught.value.message.startswith(message)


def test_documents_that_cannot_be_joined_or_are_too_large_are_refused() -> None:
    with pytest.raises(NotAcceptable, match="answers in application/x-npy cannot be joined line by line"):
        Bench().infer_lines(v2([1, 2]), answer_type=lambda is_v2: "application/x-npy")
    with pytest.raises(InvalidRequest, match="exceeds the maximum allowed input size of 100 bytes"):
        Bench(max_input_size=100).infer_lines(v2([1, 2]), v2([1, 2]))
