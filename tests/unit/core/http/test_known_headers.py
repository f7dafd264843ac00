"""A binary request whose header is known is read as a new one would be."""

from __future__ import annotations

import orjson

from tests.unit.packed_tensors import spec
from trident.core.frontend.dataplane import ResponsePlan
from trident.core.http.v2_request import KnownHeaders, decode_request
from trident.core.inference.request import InferenceRequest, InputTensor

HEADER = b'{"id":"r","inputs":[]}'
TAIL = memoryview(bytes(range(12)))


def binary_request(tail: memoryview = TAIL) -> InferenceRequest:
    made = InferenceRequest(
        "m",
        [InputTensor("A", "INT32", (1,), tail[:4]), InputTensor("B", "INT32", (2,), tail[4:12])],
        id="r",
        outputs=("OUT",),
        priority=2,
        timeout_us=7,
    )
    made.parameters = {"mine": 1}
    made.correlation_id = 5
    made.sequence_start = True
    return made


def test_header_cache_recalls_a_request_with_the_tensors_of_another_body() -> None:
    known = KnownHeaders()
    plan = ResponsePlan(binary=True)
    known.remember(HEADER, binary_request(), plan)
    tail = memoryview(bytes(range(100, 112)))
    recalled = known.recall("m", 3, HEADER, tail)
    assert recalled is not None
    again, again_plan = recalled
    assert again_plan == plan
    assert [(t.name, t.datatype, t.shape, bytes(t.data)) for t in again.inputs] == [
        ("A", "INT32", (1,), bytes(range(100, 104))),
        ("B", "INT32", (2,), bytes(range(104, 112))),
    ]
    assert (again.id, again.outputs, again.priority, again.timeout_us) == ("r", ("OUT",), 2, 7)
    assert (again.model_version, again.correlation_id, again.sequence_start) == (3, 5, True)
    assert again.parameters == {"mine": 1}


def test_header_cache_keeps_no_body_and_stays_bounded() -> None:
    known = KnownHeaders()
    body = memoryview(bytearray(12))
    known.remember(HEADER, binary_request(body), ResponsePlan())
    body.release()  # raises BufferError while a view of it is kept
    for number in range(2000):
        known.remember(HEADER + b"%d" % number, binary_request(), ResponsePlan())
        assert known.recall("m", -1, HEADER + b"%d" % number, TAIL) is not None
    assert len(known._known) <= 512
    known.remember(HEADER + b" " * 3000, binary_request(), ResponsePlan())
    assert known.recall("m", -1, HEADER + b" " * 3000, TAIL) is None


def test_a_header_with_another_id_is_another_header() -> None:
    known = KnownHeaders()
    known.remember(HEADER, binary_request(), ResponsePlan())
    assert known.recall("m", -1, HEADER.replace(b'"r"', b'"s"'), TAIL) is None
    assert known.recall("other", -1, HEADER, TAIL) is None


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
