"""A binary request whose header is known is read as a new one would be."""

from __future__ import annotations

import orjson

from tests.unit.packed_tensors import spec
from trident.core.frontend.dataplane import ResponsePlan
from trident.core.http.v2_request import _known_headers, decode_request
from trident.core.inference.request import InferenceRequest

MODEL = spec(A=("INT32", (-1,)), B=("INT32", (-1,)))
HEADER = {
    "id": "r",
    "parameters": {"priority": 2, "timeout": 7, "sequence_id": 5, "sequence_start": True, "mine": 1},
    "inputs": [
        {"name": "A", "datatype": "INT32", "shape": [1], "parameters": {"binary_data_size": 4}},
        {"name": "B", "datatype": "INT32", "shape": [2], "parameters": {"binary_data_size": 8}},
    ],
    "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}],
}


def decode(tail: bytes | bytearray, *, version: int = -1, **changed: object) -> tuple[InferenceRequest, ResponsePlan]:
    text = orjson.dumps(HEADER | changed)
    return decode_request(memoryview(bytearray(text) + tail), len(text), version, MODEL, 1 << 20)


def test_cached_header_decodes_the_tensors_of_another_body() -> None:
    decode(bytes(12))
    request, plan = decode(bytes(range(100, 112)), version=3)
    assert plan.form_of("OUT") == (True, 0)
    assert [(t.name, t.datatype, t.shape, bytes(t.data)) for t in request.inputs] == [
        ("A", "INT32", (1,), bytes(range(100, 104))),
        ("B", "INT32", (2,), bytes(range(104, 112))),
    ]
    assert (request.id, request.outputs, request.priority, request.timeout_us) == ("r", ("OUT",), 2, 7)
    assert (request.model_version, request.correlation_id, request.sequence_start) == (3, 5, True)
    assert request.parameters == {"mine": 1}


def test_cached_headers_hold_no_bodies_and_are_bounded() -> None:
    text = orjson.dumps(HEADER | {"id": "body"})
    body = bytearray(text) + bytes(12)
    decode_request(memoryview(body), len(text), -1, MODEL, 1 << 20)
    body.clear()  # raises BufferError while a view of it is left
    for number in range(2000):
        decode(bytes(12), id=str(number))
    assert len(_known_headers) <= 512
    before = len(_known_headers)
    decode(bytes(12), id=" " * 3000)
    assert len(_known_headers) == before


def test_header_with_another_id_is_cached_separately() -> None:
    decode(bytes(12))
    assert decode(bytes(12), id="s")[0].id == "s"


def test_data_in_the_json_of_a_binary_request_is_read_each_time() -> None:
    model = spec(A=("INT32", (-1,)), B=("INT32", (-1,)))
    for number in (1, 2):
        header = {
            "inputs": [
                {"name": "A", "datatype": "INT32", "shape": [1, 1], "data": [7]},
                {"name": "B", "datatype": "INT32", "shape": [1, 1], "parameters": {"binary_data_size": 4}},
            ]
        }
        text, tail = orjson.dumps(header), number.to_bytes(4, "little")
        request, _ = decode_request(text + tail, len(text), -1, model, 1 << 20)
        assert [bytes(tensor.data) for tensor in request.inputs] == [b"\7\0\0\0", tail]
