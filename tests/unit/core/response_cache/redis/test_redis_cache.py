"""Against a real Redis server."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.certificates import Authority
from tests.contract.servers.ports import HOST
from tests.redis_server import RedisServer
from tests.waiting import until
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.response_cache.redis_options import RedisOptions
from trident.core.response_cache.response_cache import CachedResponse

if TYPE_CHECKING:
    from trident.core.response_cache.redis_cache import RedisCache

IDENTITY = b"files and configuration"


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


@contextmanager
def cache_at(redis: RedisServer, *, connected: bool = True, **options: Any) -> Iterator[RedisCache]:
    from trident.core.response_cache.redis_cache import RedisCache

    options = {"lookup_timeout": 5000, **options}
    cache = RedisCache(RedisOptions(host=HOST, port=redis.port, **options))
    try:
        if connected:
            until(lambda: cache.metrics().is_up)
        yield cache
    finally:
        cache.close()


def client(redis: RedisServer) -> Any:
    from redis import Redis

    return Redis(HOST, redis.port)


def response(value: int = 0, size: int = 8) -> CachedResponse:
    array = np.full((1, size), value, np.uint8)
    return CachedResponse.of(InferenceResponse("m", 1, [OutputTensor("OUT", "UINT8", array.shape, array)]))


def look_up(cache: RedisCache, key: bytes) -> CachedResponse | None:
    found: list[CachedResponse | None] = []
    if cache.look_up(key, found.append) is None:
        return None
    until(lambda: found)
    return found[0]


def kept(cache: RedisCache, key: bytes) -> CachedResponse:
    """What is found once the writing thread has written it."""
    return until(lambda: look_up(cache, key))  # type: ignore[return-value]


def key_of(cache: RedisCache, name: str, identity: bytes = IDENTITY, *, version: int = 1) -> bytes:
    return cache.open_scope(name, version, lambda: identity) + b"=request"


def test_an_answer_is_found_by_another_server_with_the_same_model(redis: RedisServer) -> None:
    with cache_at(redis) as first, cache_at(redis, pool_size=2) as second:
        key = key_of(first, "shared")
        assert look_up(first, key) is None
        first.put(key, response(7))
        found = kept(second, key_of(second, "shared"))
        assert found.content == bytes([7] * 8)
        assert look_up(second, key_of(second, "shared", b"other files")) is None
        assert look_up(second, key_of(second, "shared") + b"more") is None


def test_a_version_of_unknown_files_has_answers_of_its_own(redis: RedisServer) -> None:
    with cache_at(redis) as cache:
        one, other = (cache.open_scope("unknown", 1, lambda: None) + b"=request" for _ in range(2))
        cache.put(one, response())
        kept(cache, one)
        assert look_up(cache, other) is None


def test_the_names_tell_the_model_and_nothing_of_the_request(redis: RedisServer) -> None:
    with cache_at(redis) as cache:
        key = key_of(cache, "named", version=3)
        cache.put(key, response())
        kept(cache, key)
        (name,) = client(redis).keys("trident:1:named:*")
        assert name.startswith(b"trident:1:named:3:")
        assert b"request" not in name


@pytest.mark.parametrize("kind", ["text", "hash", "cut"])
def test_a_foreign_value_is_a_miss_and_is_replaced(
    redis: RedisServer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with cache_at(redis) as cache:
        key = key_of(cache, f"foreign-{kind}")
        cache.put(key, response(1))
        kept(cache, key)
        (name,) = client(redis).keys(f"trident:1:foreign-{kind}:*")
        whole = client(redis).get(name)
        client(redis).delete(name)
        if kind == "hash":  # as Triton's cache writes them
            client(redis).hset(name, "0:b", b"value")
        else:
            client(redis).set(name, whole[:-1] if kind == "cut" else b"value")
        with caplog.at_level(logging.WARNING, "trident.cache"):
            assert [look_up(cache, key) for _ in range(3)] == [None] * 3
        assert cache.metrics().faults["damaged"] == 3
        assert caplog.text.count("is no answer") == 1
        cache.put(key, response(2))
        assert kept(cache, key).content == bytes([2] * 8)


def test_many_answers_are_written_and_read_at_once(redis: RedisServer) -> None:
    with cache_at(redis, pool_size=3) as cache:
        scope = cache.open_scope("many", 1, lambda: IDENTITY)
        keys = [scope + b"=%d" % number for number in range(300)]
        for number, key in enumerate(keys):
            cache.put(key, response(number % 256))
        until(lambda: len(client(redis).keys("trident:1:many:*")) == 300)
        found: dict[bytes, CachedResponse | None] = {}
        for key in keys:
            cache.look_up(key, lambda each, key=key: found.update({key: each}))  # type: ignore[misc]
        until(lambda: len(found) == 300)
        assert [each and each.content[0] for each in map(found.get, keys)] == [number % 256 for number in range(300)]


def test_a_halted_redis_delays_nothing_past_the_budget_and_is_left_out(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "trident.cache"),
        cache_at(redis, lookup_timeout=30, connect_timeout=200) as cache,
    ):
        key = key_of(cache, "halted")
        with redis.halted():
            began_s = time.monotonic()
            while cache.metrics().is_up:
                assert look_up(cache, key) is None
            assert time.monotonic() - began_s > 0.03
            assert cache.look_up(key, lambda found: None) is None
            cache.put(key, response())
        faults = cache.metrics().faults
        assert faults["late"] >= 5
        assert (faults["left_out"], faults["unwritten"]) == (1, 1)
        assert caplog.text.count("is left out") == 1
        until(lambda: cache.metrics().is_up)
        cache.put(key, response(1))
        kept(cache, key)


def test_a_redis_that_is_gone_is_found_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer(tmp_path) as redis, cache_at(redis) as cache:
        key = key_of(cache, "gone")
        redis.stop()
        assert look_up(cache, key) is None
        until(lambda: not cache.metrics().is_up)
        assert cache.look_up(key, lambda found: None) is None
        redis.start()
        until(lambda: cache.metrics().is_up)
        cache.put(key, response())
        kept(cache, key)


def test_without_redis_there_is_a_cache_that_finds_nothing(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as redis:
        redis.stop()
        with cache_at(redis, connected=False) as cache:
            key = key_of(cache, "never")
            assert cache.look_up(key, lambda found: None) is None
            assert not cache.holds(1)
            redis.start()
            until(lambda: cache.metrics().is_up)


def test_a_connection_that_redis_has_closed_is_made_again(redis: RedisServer) -> None:
    with cache_at(redis) as cache:
        key = key_of(cache, "closed")
        cache.put(key, response())
        kept(cache, key)
        client(redis).execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        kept(cache, key)
        assert cache.metrics().is_up


def test_a_full_redis_keeps_answering(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer(tmp_path, "--maxmemory", "1mb") as redis, cache_at(redis) as cache:
        key = key_of(cache, "full")
        with caplog.at_level(logging.WARNING, "trident.cache"):
            for _ in range(3):
                cache.put(key, response(size=2 << 20))
            until(lambda: cache.metrics().faults["unwritten"] == 3)
        assert look_up(cache, key) is None
        assert cache.metrics().is_up
        assert caplog.text.count("keeps no more answers") == 1


def test_a_wrong_password_is_named_and_not_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, "trident.cache"),
        RedisServer(tmp_path, "--requirepass", "right-one") as redis,
        cache_at(redis, connected=False, password="wrong-one") as cache,
    ):
        until(lambda: "is left out" in caplog.text)
        assert "invalid username-password pair" in caplog.text
        assert "wrong-one" not in caplog.text + repr(cache._options)
        with cache_at(redis, password="right-one", user="default", db=3) as other:
            key = key_of(other, "db")
            other.put(key, response())
            kept(other, key)


def test_tls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path)
    cert, key_file = authority.sign("redis")
    mine, my_key = authority.sign("client")
    with RedisServer(tmp_path, tls=(cert, key_file, authority.root)) as redis:
        with cache_at(redis, cacert=str(authority.root), cert=str(mine), key=str(my_key)) as cache:
            key = key_of(cache, "tls")
            cache.put(key, response())
            kept(cache, key)
        with caplog.at_level(logging.WARNING, "trident.cache"), cache_at(redis, connected=False, tls_enabled=True):
            until(lambda: "certificate verify failed" in caplog.text)
