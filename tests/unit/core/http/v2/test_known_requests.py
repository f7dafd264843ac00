from __future__ import annotations

from trident.core.http.v2_known import HeaderCache
from trident.core.http.v2_response import ResponsePlan
from trident.core.inference.request import InferenceRequest, InputTensor

HEADER = b'{"id":"r","inputs":[]}'
TAIL = memoryview(bytes(range(12)))


def request(tail: memoryview = TAIL) -> InferenceRequest:
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
    cache = HeaderCache()
    plan = ResponsePlan(binary=True)
    cache.remember(HEADER, request(), plan)
    tail = memoryview(bytes(range(100, 112)))
    recalled = cache.recall("m", 3, HEADER, tail)
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


def test_recalled_requests_do_not_share_parameters() -> None:
    cache = HeaderCache()
    cache.remember(HEADER, request(), ResponsePlan())
    first = cache.recall("m", -1, HEADER, TAIL)
    assert first is not None
    assert first[0].parameters is not None
    first[0].parameters["X-Forwarded"] = "secret"
    second = cache.recall("m", -1, HEADER, TAIL)
    assert second is not None
    assert second[0].parameters == {"mine": 1}


def test_header_cache_does_not_know_another_model_or_size() -> None:
    cache = HeaderCache()
    cache.remember(HEADER, request(), ResponsePlan())
    assert cache.recall("other", -1, HEADER, TAIL) is None
    assert cache.recall("m", -1, HEADER, TAIL[:11]) is None
    assert cache.recall("m", -1, HEADER + b" ", TAIL) is None


def test_header_cache_keeps_no_body_and_stays_bounded() -> None:
    cache = HeaderCache()
    body = memoryview(bytearray(12))
    cache.remember(HEADER, request(body), ResponsePlan())
    body.release()  # raises BufferError while a view of it is kept
    for number in range(2000):
        cache.remember(HEADER + b"%d" % number, request(), ResponsePlan())
        assert cache.recall("m", -1, HEADER + b"%d" % number, TAIL) is not None
    assert len(cache._known) <= 512
    cache.remember(HEADER + b" " * 3000, request(), ResponsePlan())
    assert cache.recall("m", -1, HEADER + b" " * 3000, TAIL) is None


def test_a_known_header_may_have_another_id() -> None:
    cache = HeaderCache()
    cache.remember(HEADER, request(), ResponsePlan())
    for request_id in ("s", "", "a longer one \u00e4"):
        recalled = cache.recall("m", -1, HEADER.replace(b'"r"', f'"{request_id}"'.encode()), TAIL)
        assert recalled is not None
        assert recalled[0].id == request_id
    assert cache.recall("m", -1, HEADER.replace(b'"r"', b'"\\n"'), TAIL) is None


def test_a_header_with_the_id_of_another_member_is_not_remembered() -> None:
    cache = HeaderCache()
    for header in (b'{"parameters":{"id":"x"},"id":"r"}', b'{"id":"r","id":"r"}', b'{"id":"r","\\u0069d":"r"}', b"{}"):
        cache.remember(header, request(), ResponsePlan())
        assert cache.recall("m", -1, header, TAIL) is None
