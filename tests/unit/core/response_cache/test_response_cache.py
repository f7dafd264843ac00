"""Cached responses and their keys."""

from __future__ import annotations

import logging
import sys
from typing import Any

import numpy as np
import pytest

from tests.unit.packed_tensors import packed_responses
from trident.core.inference.request import InferenceRequest, InferenceTimes, InputTensor, PackedInputs
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.inference.tensors import layout_of, pack_bytes
from trident.core.response_cache.response_cache import LONGEST_PLAIN, CachedResponse, LocalCache, request_key

SCOPE = b"12345678"
A = np.arange(4, dtype=np.int32)
B = np.array([b"x", b"yz"], object)
B_WIRE = pack_bytes([b"x", b"yz"])


def request(inputs: Any = None, **fields: Any) -> InferenceRequest:
    made = [InputTensor("A", "INT32", (4,), A), InputTensor("B", "BYTES", (2,), B)] if inputs is None else inputs
    return InferenceRequest("m", made, **fields)


def packed(*names: str) -> PackedInputs:
    tensors = {"A": ("INT32", (4,), A.tobytes()), "B": ("BYTES", (2,), B_WIRE)}
    chosen = [(name, *tensors[name]) for name in names]
    layout = layout_of([(name, datatype, shape, len(content)) for name, datatype, shape, content in chosen])
    return PackedInputs(layout, memoryview(b"".join(content for *_, content in chosen)))


@pytest.mark.parametrize(
    "inputs",
    [
        [InputTensor("B", "BYTES", (2,), memoryview(B_WIRE)), InputTensor("A", "INT32", (4,), memoryview(A.tobytes()))],
        packed("A", "B"),
        packed("B", "A"),
    ],
    ids=["binary", "packed", "packed in another order"],
)
def test_key_ignores_form_and_order_of_inputs(inputs: Any) -> None:
    assert request_key(SCOPE, request(inputs)) == request_key(SCOPE, request())


def test_key_begins_with_the_scope_and_ignores_id_priority_and_timeout() -> None:
    assert request_key(SCOPE, request(id="r", priority=3, timeout_us=9)) == request_key(SCOPE, request())
    assert request_key(b"87654321", request()) != request_key(SCOPE, request())
    assert request_key(SCOPE, request()).startswith(SCOPE)


def test_key_differs_with_everything_that_affects_the_answer() -> None:
    a, b = InputTensor("A", "INT32", (4,), A), InputTensor("B", "BYTES", (2,), B)
    requests = [
        request(),
        request(outputs=("OUT",)),
        request(outputs=("OTHER",)),
        request(parameters={"top_k": 1}),
        request(parameters={"top_k": True}),
        request(parameters={"top_k": "1"}),
        request(correlation_id=7),
        request(correlation_id="7"),
        request(correlation_id=7, sequence_start=True),
        request(correlation_id=7, sequence_end=True),
        request([InputTensor("A", "INT32", (2, 2), A), b]),
        request([InputTensor("A", "UINT32", (4,), A.view(np.uint32)), b]),
        request([a, InputTensor("C", "BYTES", (2,), B)]),
        request([a]),
        request([a, InputTensor("B", "BYTES", (2,), B[::-1])]),
    ]
    assert len({request_key(SCOPE, each) for each in requests}) == len(requests)


def test_a_large_request_has_a_short_key_that_depends_on_every_byte() -> None:
    large = np.zeros(1 << 16, np.uint8)
    first = request_key(SCOPE, request([InputTensor("A", "UINT8", large.shape, large)]))
    changed = large.copy()
    changed[-1] = 1
    second = request_key(SCOPE, request([InputTensor("A", "UINT8", large.shape, changed)]))
    assert first != second
    assert len(first) == len(second) < LONGEST_PLAIN


def test_cached_response_is_a_copy_of_the_outputs() -> None:
    numbers, words = np.arange(3, dtype=np.int32), np.array([b"a", b"bcd"], object)
    outputs = [OutputTensor("N", "INT32", (3,), numbers), OutputTensor("W", "BYTES", (2,), words)]
    cached = CachedResponse.of(InferenceResponse("m", 1, outputs, id="first", parameters={"score": 2}))
    numbers[:] = 0
    answer = cached.answer(InferenceRequest("m", [], id="second"), "m", 1)
    assert [(out.name, out.datatype, out.shape, out.array.tolist()) for out in answer.outputs] == [
        ("N", "INT32", (3,), [0, 1, 2]),
        ("W", "BYTES", (2,), [b"a", b"bcd"]),
    ]
    assert (answer.id, answer.final, answer.parameters, answer.times) == ("second", True, {"score": 2}, None)


def test_cached_answer_has_packed_outputs_and_no_times() -> None:
    (response,) = packed_responses(1)
    answer = CachedResponse.of(response).answer(InferenceRequest("m", []), "m", 1)
    assert [out.array.tolist() for out in answer.outputs] == [out.array.tolist() for out in response.outputs]
    of_the_execution = InferenceTimes(1, 2, 3, 4, 5).parameters()
    cached = CachedResponse.of(InferenceResponse("m", 1, [], parameters={**of_the_execution, "score": 2}))
    assert cached.answer(InferenceRequest("m", []), "m", 1).parameters == {"score": 2}
    cached = CachedResponse.of(InferenceResponse("m", 1, [], parameters={"score": 2}))
    first = cached.answer(InferenceRequest("m", []), "m", 1)
    assert first.parameters is not None
    first.parameters["score"] = 3
    assert cached.answer(InferenceRequest("m", []), "m", 1).parameters == {"score": 2}


# --- the response cache in memory


def response(size: int = 64, value: int = 0) -> CachedResponse:
    array = np.full((1, size), value, np.uint8)
    return CachedResponse.of(InferenceResponse("m", 1, [OutputTensor("OUT", "UINT8", array.shape, array)]))


def key(number: int) -> bytes:
    return b"scope000" + str(number).zfill(8).encode()


def room_for(count: int) -> LocalCache:
    probe = LocalCache(1 << 20)
    for number in range(count):
        probe.put(key(number), response())
    return LocalCache(probe.metrics().used)


def test_first_response_of_a_key_is_returned_for_that_key() -> None:
    cache, kept = LocalCache(1 << 20), response()
    cache.put(key(1), kept)
    assert cache.get(key(1)) is kept
    assert cache.get(key(2)) is None
    cache, first = LocalCache(1 << 20), response(value=1)
    cache.put(key(1), first)
    used = cache.metrics().used
    cache.put(key(1), response(value=2))
    assert cache.get(key(1)) is first
    assert cache.metrics().used == used


def test_least_recently_used_response_is_evicted() -> None:
    cache = room_for(3)
    for number in range(3):
        cache.put(key(number), response())
    cache.get(key(0))
    cache.put(key(3), response())
    assert [number for number in range(4) if cache.get(key(number))] == [0, 2, 3]
    assert (cache.metrics().entries, cache.metrics().evictions) == (3, 1)


def test_response_larger_than_the_cache_is_not_stored(caplog: pytest.LogCaptureFixture) -> None:
    cache = LocalCache(10_000)
    cache.put(key(1), response())
    with caplog.at_level(logging.WARNING, "trident.cache"):
        cache.put(key(2), response(20_000))
    assert "is greater than total cache size: 10000" in caplog.text
    assert cache.get(key(1)) is not None
    assert cache.get(key(2)) is None
    # Not even alone: the cache itself has a size, too.
    alone = LocalCache(1 << 20)
    alone.put(key(2), response(5_000))
    cache = LocalCache(alone.metrics().used - 1)
    cache.put(key(1), response())
    cache.put(key(2), response(5_000))
    assert (cache.get(key(1)) is None, cache.get(key(2)), cache.metrics().evictions) == (False, None, 0)


def test_large_response_evicts_many_small_ones() -> None:
    alone = LocalCache(1 << 20)
    alone.put(key(0), response(200_000))
    cache = LocalCache(alone.metrics().used)
    for number in range(1, 1000):
        cache.put(key(number), response())
    cache.put(key(0), response(200_000))
    assert (cache.get(key(0)) is not None, cache.metrics().entries) == (True, 1)
    assert cache.metrics().used <= cache.size


def test_closing_a_scope_removes_only_its_responses() -> None:
    cache = LocalCache(1 << 20)
    for _ in range(2):
        for number in range(2500):
            cache.put(key(number), response(8))
        cache.put(b"another0x", response())
        cache.close_scope(b"scope000")
        assert cache.metrics().entries == 1
        assert cache.metrics().used < 30 * sys.getsizeof({1: 1})
    assert cache.get(b"another0x") is not None
    cache.close_scope(b"another0")
    assert cache.metrics().used == LocalCache(1).metrics().used


def test_answers_of_a_lasting_cache_outlive_an_unload_of_the_same_files() -> None:
    cache = LocalCache(1 << 20, lasting=True)
    same, other, unknown = (cache.open_scope("m", 1, lambda made=made: made) for made in (b"files", b"others", None))
    for scope in (same, other, unknown):
        cache.put(scope + b"=x", response())
        cache.close_scope(scope)
    assert cache.open_scope("m", 1, lambda: b"files") == same
    assert cache.get(same + b"=x") is not None
    assert cache.get(unknown + b"=x") is None
    assert len({same, other, unknown, cache.open_scope("m", 1, lambda: None)}) == 4
