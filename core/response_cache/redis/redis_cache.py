"""The response cache in a Redis server.

Source: docs/spec/schedulers.md section 3.7, "Redis".
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from uuid import uuid4

from core.observability.metrics.snapshot import RemoteCacheMetrics
from core.response_cache.cached_response import CachedResponse
from core.response_cache.redis.circuit_breaker import CircuitBreaker
from core.response_cache.redis.connection import RedisConnection, Unreachable
from core.response_cache.redis.look_ups import LookUps, PendingLookUp
from core.response_cache.redis.options import RedisOptions
from core.response_cache.redis.response_frame import LARGEST, BadFrame, decode, encode
from core.response_cache.response_cache import OnFound

_log = logging.getLogger("trident.cache")

PREFIX = b"trident:1:"
"""How the names of all values begin; followed by the model, its version and the digest of the key."""
SCOPE_SIZE = 16
_NAME_DIGEST = 24
_READ_AT_ONCE = 16
_WRITTEN_AT_ONCE = 8
MOST_UNWRITTEN = 64 << 20
"""The answers that may wait to be written, in bytes. Those above are not kept."""
_LONGEST_CLOSE_S = 2.0


class RedisCache:
    """Implements ResponseCache. `pool_size` threads, each with a connection, exchange what waits with Redis.

    One round trip asks for several keys and writes several answers. Redis decides what makes room for new answers
    (its `maxmemory-policy`), and several servers may share it: a scope is a digest of the model's files and
    configuration, so that an answer is found by those alone that would give the same.
    """

    answers_later = True

    def __init__(self, options: RedisOptions) -> None:
        self._options = options
        self._breaker = CircuitBreaker(options.address)
        self._budget_s = options.lookup_timeout / 1000
        self._look_ups = LookUps(self._budget_s, self._note_late)
        self._work = threading.Condition()
        self._closing = threading.Event()
        # --- guarded by the condition's lock
        self._unwritten: deque[tuple[bytes, CachedResponse]] = deque()
        self._unwritten_bytes = 0
        self._faults = dict.fromkeys(("late", "left_out", "lost", "damaged", "unwritten"), 0)
        self._said: set[str] = set()
        # ---
        self._prefixes: dict[bytes, bytes] = {}
        self._threads = [
            threading.Thread(target=self._run, name=f"trident-cache-redis-{number}", daemon=True)
            for number in range(options.pool_size)
        ]
        for thread in self._threads:
            thread.start()

    def open_scope(self, name: str, version: int, identity: Callable[[], bytes | None]) -> bytes:
        # Answers of a version of which it is not known what it was made of are for itself alone.
        scope = blake2b(identity() or uuid4().bytes, digest_size=SCOPE_SIZE).digest()
        self._prefixes[scope] = b"%s%s:%d:" % (PREFIX, name.encode("utf-8", "surrogateescape"), version)
        return scope

    def close_scope(self, scope: bytes) -> None:
        """Nothing: other servers, and a later load of the same files, may use the answers."""

    def get(self, key: bytes) -> None:
        return None

    def look_up(self, key: bytes, on_found: OnFound) -> PendingLookUp | None:
        if self._breaker.is_open:
            self._count("left_out")
            return None
        added = self._look_ups.add(key, on_found)
        with self._work:
            self._work.notify()
        return added

    def put(self, key: bytes, response: CachedResponse) -> None:
        with self._work:
            if self._breaker.is_open or self._unwritten_bytes > MOST_UNWRITTEN:
                self._faults["unwritten"] += 1
                return
            self._unwritten.append((key, response))
            self._unwritten_bytes += response.nbytes
            self._work.notify()

    def holds(self, nbytes: int) -> bool:
        return nbytes < LARGEST and not self._breaker.is_open

    def metrics(self) -> RemoteCacheMetrics:
        with self._work:
            return RemoteCacheMetrics(is_up=not self._breaker.is_open, faults=dict(self._faults))

    def close(self) -> None:
        self._closing.set()
        with self._work:
            self._work.notify_all()
        self._look_ups.close()
        until_s = time.monotonic() + _LONGEST_CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    # --- the threads

    def _run(self) -> None:
        """Connect, and exchange what waits until Redis is gone or slow; then try again after a pause."""
        connection = RedisConnection(self._options)
        try:
            while not self._closing.is_set():
                reason = self._fault_of(connection)
                if reason:
                    self._breaker.open(reason)
                    self._look_ups.end_all()
                    self._closing.wait(self._breaker.next_pause_s())
                    continue
                self._breaker.close()
                try:
                    self._serve(connection)
                except Unreachable:  # perhaps only this connection was closed: the next check tells
                    connection.close()
                    continue
                if self._breaker.is_open:
                    self._closing.wait(self._breaker.next_pause_s())
        finally:
            connection.close()

    def _fault_of(self, connection: RedisConnection) -> str:
        """Why Redis is of no use now; empty if it answers as fast as it must."""
        try:
            connection.check()
            began_s = time.monotonic()
            connection.check()
        except Unreachable as error:
            connection.close()
            return str(error)
        return "it does not answer in time" if time.monotonic() - began_s > self._budget_s else ""

    def _serve(self, connection: RedisConnection) -> None:
        """Exchange what waits, until the circuit is open or the cache is closed. Raises Unreachable."""
        while True:
            with self._work:
                while not (self._look_ups.waits or self._unwritten or self._is_over):
                    self._work.wait()
            if self._is_over:
                return
            self._exchange(connection)

    @property
    def _is_over(self) -> bool:
        return self._breaker.is_open or self._closing.is_set()

    def _exchange(self, connection: RedisConnection) -> None:
        """One round trip. Raises Unreachable; then what was looked up is not found."""
        look_ups = self._look_ups.take(_READ_AT_ONCE)
        names = [self._name(look_up.key) for look_up in look_ups]
        values = self._values()
        if not names and not values:
            return
        try:
            found, errors = connection.exchange(names, LARGEST, values)
        except Unreachable:
            self._count("lost", sum([look_up.end(None) for look_up in look_ups]))
            self._count("unwritten", len(values))
            raise
        in_time = False
        for look_up, name, value in zip(look_ups, names, found, strict=True):
            in_time |= look_up.end(self._response(name, value))
        if in_time:
            self._breaker.note_answer()
        self._note_unwritten(errors)

    def _values(self) -> list[tuple[bytes, bytes]]:
        """Some of the answers to write, by name."""
        taken: list[tuple[bytes, CachedResponse]] = []
        with self._work:
            while self._unwritten and len(taken) < _WRITTEN_AT_ONCE:
                key, response = self._unwritten.popleft()
                self._unwritten_bytes -= response.nbytes
                taken.append((key, response))
        values: list[tuple[bytes, bytes]] = []
        for key, response in taken:
            name = self._name(key)
            value = encode(name, response)
            if value is not None:
                values.append((name, value))
        return values

    def _name(self, key: bytes) -> bytes:
        """The name of a key's value in Redis: nothing of a request can be read in it."""
        digest = blake2b(key, digest_size=_NAME_DIGEST).hexdigest()
        return self._prefixes[key[:SCOPE_SIZE]] + digest.encode()

    def _response(self, name: bytes, value: bytes | Exception) -> CachedResponse | None:
        if not value:
            return None
        try:
            if isinstance(value, Exception):  # it is no string
                raise BadFrame("something else wrote it")
            return decode(name, value)
        except BadFrame as error:
            self._count("damaged")
            self._say_once(f"the response cache at {self._options.address} has an answer that is no answer: {error}")
            return None

    # --- faults

    def _note_late(self, count: int) -> None:
        self._count("late", count)
        self._breaker.note_late(count)
        if self._breaker.is_open:
            with self._work:
                self._work.notify_all()

    def _note_unwritten(self, errors: Sequence[Exception]) -> None:
        if errors:
            self._count("unwritten", len(errors))
            self._say_once(f"the response cache at {self._options.address} keeps no more answers: {errors[0]}")

    def _count(self, fault: str, count: int = 1) -> None:
        with self._work:
            self._faults[fault] += count

    def _say_once(self, text: str) -> None:
        """Log a warning that would repeat with every request."""
        with self._work:
            if text in self._said or len(self._said) > _READ_AT_ONCE:
                return
            self._said.add(text)
        _log.warning("%s", text)
