"""The response cache in a Redis server."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import pytest

from tests.certificates import Authority
from tests.contract.servers.ports import HOST
from tests.redis_server import RedisServer
from tests.waiting import until
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.inference.tensors import TensorLayout
from trident.core.options import RedisOptions
from trident.core.response_cache.redis_cache import (
    FIRST_PAUSE_S,
    LARGEST,
    LONGEST_PAUSE_S,
    CircuitBreaker,
    DamagedAnswer,
    decode,
    encode,
)
from trident.core.response_cache.response_cache import CachedResponse, FaultOf

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


def fits(layout: TensorLayout) -> str:
    return ""


def look_up(cache: RedisCache, key: bytes, fault_of: FaultOf = fits) -> CachedResponse | None:
    found: list[CachedResponse | None] = []
    if cache.look_up(key, fault_of, found.append) is None:
        return None
    until(lambda: found)
    return found[0]


def kept(cache: RedisCache, key: bytes) -> CachedResponse:
    """Return the cached response once the writing thread has stored it."""
    return until(lambda: look_up(cache, key))  # type: ignore[return-value]


def key_of(cache: RedisCache, name: str, identity: bytes = IDENTITY, *, version: int = 1) -> bytes:
    return cache.open_scope(name, version, lambda: identity) + b"=request"


@pytest.mark.parametrize("kind", ["text", "hash", "cut"])
def test_damaged_or_foreign_value_is_a_miss_and_is_replaced(
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
        assert caplog.text.count("has a damaged answer") == 1
        cache.put(key, response(2))
        assert kept(cache, key).content == bytes([2] * 8)


def test_invalid_answer_of_the_model_is_a_miss(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    with cache_at(redis) as cache, caplog.at_level(logging.WARNING, "trident.cache"):
        key = key_of(cache, "misfit")
        cache.put(key, response(1))
        kept(cache, key)
        seen: list[TensorLayout] = []

        def fault_of(layout: TensorLayout) -> str:
            seen.append(layout)
            return "the reason"

        assert look_up(cache, key, fault_of) is None
        assert [entry[0] for entry in seen[0].entries] == ["OUT"]
        assert cache.metrics().faults["damaged"] == 1
        assert "has a damaged answer: the reason" in caplog.text


@pytest.mark.parametrize(
    ("nonsense", "answers"),
    [(b"$abc\r\n", 0), (b"$abc\r\n", 2), (b"*1\r\n" * 2000, 2), (b"HTTP/1.1 400 Bad Request\r\n\r\n", 0)],
    ids=range(4),
)
def test_foreign_service_is_bypassed_until_redis_answers(
    nonsense: bytes, answers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    redis = RedisServer(tmp_path)
    with (
        WrongService(redis.port, nonsense, answers) as service,
        caplog.at_level(logging.WARNING, "trident.cache"),
        cache_at(redis, connected=False) as cache,
    ):
        key = key_of(cache, "wrong")
        if answers:
            until(lambda: cache.metrics().is_up)
            assert look_up(cache, key) is None
        until(lambda: "bypassing the response cache" in caplog.text)
        until(lambda: not cache.metrics().is_up)
        service.close()
        with redis:
            until(lambda: cache.metrics().is_up)
            cache.put(key, response(1))
            kept(cache, key)


class WrongService:
    """Answers each command on a connection with `nonsense`, the first `answers` of them all as Redis would."""

    def __init__(self, port: int, nonsense: bytes, answers: int) -> None:
        self._nonsense = nonsense
        self._answers = answers
        self._listener = socket.create_server((HOST, port))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):
                    while command := connection.recv(65536):
                        if b"PING" in command and self._answers:
                            self._answers -= 1
                            connection.sendall(b"+PONG\r\n")
                        elif b"CLIENT" in command:
                            connection.sendall(b"+OK\r\n" * command.count(b"CLIENT"))
                        else:
                            connection.sendall(self._nonsense)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def __enter__(self) -> WrongService:
        return self

    def __exit__(self, *raised: object) -> None:
        with suppress(OSError):
            self.close()


def test_halted_redis_is_bypassed_after_the_budget(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "trident.cache"),
        cache_at(redis, lookup_timeout=30, socket_timeout=60_000) as cache,
    ):
        key = key_of(cache, "halted")
        with redis.halted():
            began_s = time.monotonic()
            while cache.metrics().is_up:
                assert look_up(cache, key) is None
            assert time.monotonic() - began_s > 0.03
            assert cache.look_up(key, fits, lambda found: None) is None
            cache.put(key, response())
        faults = cache.metrics().faults
        assert faults["late"] >= 5
        assert (faults["left_out"], faults["unwritten"]) == (1, 1)
        assert caplog.text.count("bypassing the response cache") == 1
        until(lambda: cache.metrics().is_up)
        cache.put(key, response(1))
        kept(cache, key)


def test_restarted_redis_is_used_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer(tmp_path) as redis, cache_at(redis) as cache:
        key = key_of(cache, "gone")
        redis.stop()
        assert look_up(cache, key) is None
        until(lambda: not cache.metrics().is_up)
        assert cache.look_up(key, fits, lambda found: None) is None
        redis.start()
        until(lambda: cache.metrics().is_up)
        cache.put(key, response())
        kept(cache, key)


def test_closed_redis_connection_is_reopened(redis: RedisServer) -> None:
    with cache_at(redis) as cache:
        key = key_of(cache, "closed")
        cache.put(key, response())
        kept(cache, key)
        client(redis).execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        kept(cache, key)
        assert cache.metrics().is_up


def test_full_redis_still_answers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer(tmp_path, "--maxmemory", "1mb") as redis, cache_at(redis) as cache:
        key = key_of(cache, "full")
        with caplog.at_level(logging.WARNING, "trident.cache"):
            for _ in range(3):
                cache.put(key, response(size=2 << 20))
            until(lambda: cache.metrics().faults["unwritten"] == 3)
        assert look_up(cache, key) is None
        assert cache.metrics().is_up
        assert caplog.text.count("stores no more answers") == 1


def test_redis_over_tls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    made = CircuitBreaker("cache:6379", clock)
    made.close()
    return made


def test_each_availability_change_is_logged_once(breaker: CircuitBreaker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "trident.cache"):
        for reason in ("refused", "refused", "timeout"):
            breaker.open(reason)
        for _ in range(3):
            breaker.close()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "bypassing the response cache at cache:6379" in caplog.text
    assert "refused" in caplog.text


def test_pauses_grow_and_reset_after_a_success(breaker: CircuitBreaker, clock: Clock) -> None:
    breaker.open("refused")
    pauses = [breaker.next_pause_s() for _ in range(7)]
    assert pauses == [FIRST_PAUSE_S * factor for factor in (1, 2, 4, 8, 16)] + [LONGEST_PAUSE_S] * 2
    breaker.close()
    clock.now_s += 1
    breaker.open("refused")
    assert breaker.next_pause_s() == LONGEST_PAUSE_S  # it was good for a moment only
    breaker.close()
    clock.now_s += LONGEST_PAUSE_S + 1
    breaker.open("refused")
    assert breaker.next_pause_s() == FIRST_PAUSE_S


NAME = b"trident:1:m:1:abc"


def framed_response(**fields: Any) -> CachedResponse:
    outputs = [
        OutputTensor("N", "INT32", (1, 3), np.arange(3, dtype=np.int32).reshape(1, 3)),
        OutputTensor("W", "BYTES", (2,), np.array([b"a", b"bcd"], object)),
        OutputTensor("E", "FP32", (0, 4), np.empty((0, 4), np.float32)),
    ]
    return CachedResponse.of(InferenceResponse("m", 1, outputs, **fields))


def forged(outputs: Any, content: bytes = b"", parameters: Any = None) -> bytes:
    """A value with a right checksum and any head."""
    head = json.dumps([outputs, {} if parameters is None else parameters]).encode()
    checksum = crc32(content, crc32(head, crc32(NAME)))
    return Struct("<8sIQI").pack(b"TRIDENT1", len(head), len(content), checksum) + head + content


def test_stored_response_is_read_unchanged() -> None:
    parameters = {"score": 2, "huge": 2**63 - 1, "part": 0.1, "nan": float("inf"), "last": True, "text": "ü"}
    value = encode(NAME, framed_response(parameters=parameters))
    assert value is not None
    found = decode(NAME, value)
    answer = found.answer(InferenceRequest("m", [], id="7"), "m", 1)
    assert [(out.name, out.datatype, out.shape, out.array.tolist()) for out in answer.outputs] == [
        ("N", "INT32", (1, 3), [[0, 1, 2]]),
        ("W", "BYTES", (2,), [b"a", b"bcd"]),
        ("E", "FP32", (0, 4), []),
    ]
    assert (answer.id, answer.parameters) == ("7", parameters)


def test_any_damaged_byte_is_detected() -> None:
    value = encode(NAME, framed_response())
    assert value is not None
    for at in range(len(value)):
        with pytest.raises(DamagedAnswer):
            decode(NAME, value[:at] + bytes([value[at] ^ 0x40]) + value[at + 1 :])
        with pytest.raises(DamagedAnswer):
            decode(NAME, value[:at])


def test_value_of_another_name_is_rejected() -> None:
    value = encode(NAME, framed_response())
    assert value is not None
    with pytest.raises(DamagedAnswer, match="its checksum is wrong"):
        decode(b"trident:1:m:2:abc", value)


@pytest.mark.parametrize(
    "value",
    [
        forged(None),
        forged(7),
        forged({"a": 1}),
        forged([["OUT", "INT32", [1], 4]]),  # no content
        forged([["OUT", "INT32", [2], 4]], bytes(4)),
        forged([["OUT", "INT32", [1], 4]], bytes(8)),
        forged([["OUT", "INT32", [-1, -1], 4]], bytes(4)),
        forged([["OUT", "INT32", [True], 4]], bytes(4)),
        forged([["OUT", "INT32", ["1"], 4]], bytes(4)),
        forged([["OUT", "INT32", [1], 4.0]], bytes(4)),
        forged([["OUT", "INT32", 1, 4]], bytes(4)),
        forged([["OUT", "INT31", [1], 4]], bytes(4)),
        forged([["OUT", ["INT32"], [1], 4]], bytes(4)),
        forged([[1, "INT32", [1], 4]], bytes(4)),
        forged([["OUT", "INT32", [1]]], bytes(4)),
        forged([["OUT", "BYTES", [1], 4]], b"\xff\xff\xff\x7f"),
        forged([["OUT", "BYTES", [2**62], 4]], bytes(4)),
        forged([["OUT", "FP32", [0, 2**63], 0]]),
        forged([["OUT", "BYTES", [0], -4], ["OUT", "INT32", [1], 4]]),
        forged([], parameters={"text": "\ud800"}),
        forged([], parameters={"\udfff": 1}),
        forged([], parameters={"huge": 2**63}),
        forged([["A", "INT32", [1], 4], ["B", "BYTES", [1], -4]], bytes(4)),
        forged([], b"", [1]),
        forged([], b"", {"a": None}),
        forged([], b"", {"a": [1]}),
        forged(json.loads("[" * 500 + "]" * 500)),
    ],
)
def test_forged_head_is_rejected(value: bytes) -> None:
    with pytest.raises(DamagedAnswer):
        decode(NAME, value)


def test_too_large_response_is_not_written() -> None:
    array = np.zeros(LARGEST, np.uint8)
    large = CachedResponse.of(InferenceResponse("m", 1, [OutputTensor("O", "UINT8", array.shape, array)]))
    assert encode(NAME, large) is None
    many = {str(number): number for number in range(20_000)}
    assert encode(NAME, framed_response(parameters=many)) is None
