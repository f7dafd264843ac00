"""The response cache in memory."""

from __future__ import annotations

import gc
import logging
import sys
import tracemalloc

import numpy as np
import pytest

from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.response_cache.local_cache import LocalCache
from trident.core.response_cache.response_cache import CachedResponse


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


def test_the_first_response_of_a_key_is_found_by_it_only() -> None:
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


def test_the_least_recently_used_response_makes_room() -> None:
    cache = room_for(3)
    for number in range(3):
        cache.put(key(number), response())
    cache.get(key(0))
    cache.put(key(3), response())
    assert [number for number in range(4) if cache.get(key(number))] == [0, 2, 3]
    assert (cache.metrics().entries, cache.metrics().evictions) == (3, 1)


def test_it_never_uses_more_than_its_size() -> None:
    cache = LocalCache(20_000)
    for number in range(500):
        cache.put(key(number), response(number))
        assert 0 < cache.metrics().used <= 20_000
    assert cache.metrics().evictions > 400


def test_a_response_larger_than_the_cache_is_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    cache = LocalCache(10_000)
    cache.put(key(1), response())
    with caplog.at_level(logging.WARNING, "trident.cache"):
        cache.put(key(2), response(20_000))
    assert "is greater than total cache size: 10000" in caplog.text
    assert cache.get(key(1)) is not None
    assert cache.get(key(2)) is None


def test_a_scope_is_forgotten_alone() -> None:
    cache = LocalCache(1 << 20)
    for _ in range(2):
        for number in range(2500):
            cache.put(key(number), response(8))
        cache.put(b"another0x", response())
        cache.close_scope(b"scope000")
        assert cache.metrics().entries == 1
        assert cache.metrics().used < 30 * sys.getsizeof({1: 1})
    assert cache.get(b"another0x") is not None


@pytest.mark.slow
@pytest.mark.parametrize("size", [16, 1000, 20_000])
def test_the_account_is_the_memory_that_it_takes(size: int) -> None:
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        cache = LocalCache(1 << 40)
        for number in range(3000):
            cache.put(key(number), response(size))
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # What tracemalloc sees has no headers and padding, and has the objects of this test.
    assert abs(cache.metrics().used - taken) < 3000 * 60
