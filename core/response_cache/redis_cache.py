"""The response cache in a Redis server.

Source: docs/spec/schedulers.md section 3.7, "Redis".
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from struct import Struct
from typing import Any
from uuid import uuid4
from zlib import crc32

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from trident.core.errors import InvalidRequest
from trident.core.inference.request import Parameter
from trident.core.inference.tensors import BY_NAME, BYTES, Shape, TensorLayout, element_count, layout_of, unpack_bytes
from trident.core.observability.statistics import RemoteCacheMetrics
from trident.core.options import RedisOptions
from trident.core.response_cache.response_cache import CachedResponse, FaultOf, GiveUp, OnFound

_log = logging.getLogger("trident.cache")

MOST_LATE = 5
"""The number of look-ups in a row that open the circuit by exceeding their budget."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


class CircuitBreaker:
    """Open while Redis is unreachable or slow, so that no request waits for it. Any thread.

    It begins open and is closed by the first connection. Each change is logged once.
    """

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = address
        self._clock = clock
        self._lock = threading.Lock()
        self.is_open = True
        # --- guarded by the lock
        # That it is open.
        self._was_logged = False
        self.late_in_a_row = 0
        self._pause_s = FIRST_PAUSE_S
        self._closed_at_s: float | None = None

    def note_late(self, count: int) -> None:
        with self._lock:
            self.late_in_a_row += count
            if self.late_in_a_row < MOST_LATE:
                return
        self.open("it does not answer in time")

    def open(self, reason: str) -> None:
        """Bypass Redis until `close`. The first reason is logged."""
        with self._lock:
            was_logged, self._was_logged = self._was_logged, True
            self.is_open = True
        if was_logged:
            return
        _log.warning(
            "bypassing the response cache at %s, so every request is executed: %s; it is tried again",
            self._address,
            reason,
        )

    def close(self) -> None:
        with self._lock:
            self.late_in_a_row = 0
            if not self.is_open:
                return
            self.is_open = self._was_logged = False
            self._closed_at_s = self._clock()
        _log.info("the response cache at %s answers", self._address)

    def next_pause_s(self) -> float:
        """Return the pause before the next attempt; longer each time, until the circuit was closed for a while."""
        with self._lock:
            closed_at_s, self._closed_at_s = self._closed_at_s, None
            if closed_at_s is not None and self._clock() - closed_at_s > LONGEST_PAUSE_S:
                self._pause_s = FIRST_PAUSE_S
            pause_s = self._pause_s
            self._pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            return pause_s


#         magic     8s   of this version of the format
#         head      u32  size of the head in bytes
#         content   u64  size of the content in bytes
#         checksum  u32  CRC-32 of the name of the value, the head and the content
#
# The head is JSON: the name, datatype, shape and size of each output, and the parameters. The content is the outputs,
# one after the other, as the v2 protocol sends them. Nothing in it is ever executed.


_MAGIC = b"TRIDENT1"
_START = Struct("<8sIQI")
LARGEST_HEAD = 1 << 16
LARGEST = 16 << 20
"""The largest value in bytes that is written, and the most that is read of one."""
_INT64_MAX = 2**63 - 1


class DamagedAnswer(ValueError):
    """The value is damaged, or of another program; the argument is the reason."""


def encode(name: bytes, response: CachedResponse) -> bytes | None:
    outputs = [[each, datatype, shape, end - start] for each, datatype, shape, start, end in response.layout.entries]
    head = json.dumps([outputs, response.parameters or {}], separators=(",", ":")).encode()
    content = response.content
    if len(head) > LARGEST_HEAD or _START.size + len(head) + len(content) > LARGEST:
        return None
    return b"".join((_START.pack(_MAGIC, len(head), len(content), _checksum(name, head, content)), head, content))


def decode(name: bytes, value: bytes) -> CachedResponse:
    """Return the response that `encode` wrote for `name`. Raises DamagedAnswer."""
    if len(value) < _START.size or not value.startswith(_MAGIC):
        raise DamagedAnswer("another program wrote it")
    _, head_size, content_size, checksum = _START.unpack_from(value)
    if head_size > LARGEST_HEAD or _START.size + head_size + content_size != len(value):
        raise DamagedAnswer(f"it has {len(value)} bytes and says otherwise")
    head = value[_START.size : _START.size + head_size]
    content = value[_START.size + head_size :]
    if _checksum(name, head, content) != checksum:
        raise DamagedAnswer("its checksum is wrong")
    try:
        outputs, parameters = json.loads(head)
        return CachedResponse(_layout(outputs, content), content, _parameters(parameters))
    except (ValueError, TypeError, RecursionError, InvalidRequest) as error:
        raise DamagedAnswer(f"its head is wrong: {error}") from None


def _checksum(name: bytes, head: bytes, content: bytes) -> int:
    return crc32(content, crc32(head, crc32(name)))


def _layout(outputs: Any, content: bytes) -> TensorLayout:
    """Raises ValueError, TypeError or InvalidRequest unless the outputs are exactly the content."""
    tensors: list[tuple[str, str, Shape, int]] = []
    at = 0
    for name, datatype, dims, size in outputs:
        if type(name) is not str or type(size) is not int or size < 0:
            raise ValueError("an output has values of wrong types")
        if any(type(dim) is not int or not 0 <= dim <= _INT64_MAX for dim in dims):
            raise ValueError("an output has dimensions that no tensor has")
        shape = tuple(dims)
        found = BY_NAME.get(datatype)
        if found is None:
            raise ValueError("an output has an unknown datatype")
        if found is BYTES:
            unpack_bytes(memoryview(content)[at : at + size], element_count(shape), name=name, model="")
        elif element_count(shape) * found.size != size:
            raise ValueError("the size of an output is not that of its shape")
        tensors.append((name, datatype, shape, size))
        at += size
    if at != len(content):
        raise ValueError("the outputs are not as long as the content")
    return layout_of(tensors)


def _parameters(parameters: Any) -> dict[str, Parameter] | None:
    if type(parameters) is not dict or any(type(each) not in (bool, int, float, str) for each in parameters.values()):
        raise ValueError("the parameters have values of wrong types")
    for each in (*parameters, *parameters.values()):
        if type(each) is str:
            each.encode()  # half of a surrogate pair could not be sent
        elif type(each) is int and abs(each) > _INT64_MAX:
            raise ValueError("a parameter is a number beyond 64 bits")
    return parameters or None


class PendingLookUp:
    """A look-up in progress. It ends once: with a response, by `give_up`, or when its budget is exceeded."""

    __slots__ = ("_look_ups", "due_s", "fault_of", "key", "on_found")

    def __init__(self, look_ups: LookUps, key: bytes, fault_of: FaultOf, on_found: OnFound, due_s: float) -> None:
        self._look_ups = look_ups
        self.key = key
        self.fault_of = fault_of
        self.due_s = due_s
        # None after its end.
        self.on_found: OnFound | None = on_found

    def give_up(self) -> None:
        self.end(None)

    def end(self, found: CachedResponse | None) -> bool:
        """End it, unless it has ended. Returns True if this call ended it. Any thread."""
        on_found = self._look_ups.end(self)
        if on_found is None:
            return False
        try:
            on_found(found)
        except Exception:  # it must not end the thread of all others
            _log.exception("the callback of a look-up failed")
        return True


class LookUps:
    """Look-ups in progress, each for at most `budget_s`. Any thread adds look-ups, and any takes those to ask for.

    `on_late` is called with the number of look-ups that have exceeded their budget, before they end.
    """

    def __init__(self, budget_s: float, on_late: Callable[[int], None]) -> None:
        self._budget_s = budget_s
        self._on_late = on_late
        self._lock = threading.Lock()
        self._added = threading.Condition(self._lock)
        self._closed = threading.Event()
        # --- guarded by the lock. All that have not ended, and some that have, in the order of their ends.
        self._open: deque[PendingLookUp] = deque()
        self._untaken: deque[PendingLookUp] = deque()
        self._watch = threading.Thread(target=self._end_late, name="trident-cache-budget", daemon=True)
        self._watch.start()

    def add(self, key: bytes, fault_of: FaultOf, on_found: OnFound) -> PendingLookUp:
        with self._lock:
            look_up = PendingLookUp(self, key, fault_of, on_found, time.monotonic() + self._budget_s)
            if not self._open:
                self._added.notify()
            self._open.append(look_up)
            self._untaken.append(look_up)
        return look_up

    def take(self, count: int) -> list[PendingLookUp]:
        taken: list[PendingLookUp] = []
        with self._lock:
            while self._untaken and len(taken) < count:
                look_up = self._untaken.popleft()
                if look_up.on_found is not None:
                    taken.append(look_up)
        return taken

    @property
    def has_untaken(self) -> bool:
        return bool(self._untaken)

    def end(self, look_up: PendingLookUp) -> OnFound | None:
        """End a look-up and return its callback; None if it has ended before."""
        with self._lock:
            on_found, look_up.on_found = look_up.on_found, None
        return on_found

    def end_all(self) -> None:
        with self._lock:
            waiting = list(self._open)
        for look_up in waiting:
            look_up.give_up()

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._added.notify()
        self._watch.join()
        self.end_all()

    def _end_late(self) -> None:
        """The body of the thread. It sleeps until the oldest is due: it wakes once in a budget, however many come."""
        while not self._closed.is_set():
            with self._lock:
                while not self._open and not self._closed.is_set():
                    self._added.wait()
                due_s = self._open[0].due_s if self._open else 0.0
            if self._closed.wait(max(0.0, due_s - time.monotonic())):
                return
            late: list[PendingLookUp] = []
            now_s = time.monotonic()
            with self._lock:
                while self._open and (self._open[0].on_found is None or self._open[0].due_s <= now_s):
                    look_up = self._open.popleft()
                    if look_up.on_found is not None:
                        late.append(look_up)
            if late:
                self._on_late(len(late))
                for look_up in late:
                    look_up.give_up()


PREFIX = b"trident:1:"
"""The prefix of the names of all values, before the model, its version and the digest of the key."""
SCOPE_SIZE = 16
_NAME_DIGEST = 24
_READ_AT_ONCE = 16
_WRITTEN_AT_ONCE = 8
MOST_UNWRITTEN = 64 << 20
"""The limit of the answers that wait to be written, in bytes. Above it answers are not stored."""
_LONGEST_CLOSE_S = 2.0


class RedisCache:
    """Implements ResponseCache. `pool_size` threads, each with a connection, read and write in Redis.

    One round trip asks for several keys and writes several answers. Redis evicts answers (its `maxmemory-policy`), and
    several servers may share it: a scope is a digest of the model's files and configuration, so that only servers with
    the same ones find an answer.
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
        self._logged: set[str] = set()
        # ---
        self._prefixes: dict[bytes, bytes] = {}
        self._threads = [
            threading.Thread(target=self._run, name=f"trident-cache-redis-{number}", daemon=True)
            for number in range(options.pool_size)
        ]
        for thread in self._threads:
            thread.start()

    def open_scope(self, name: str, version: int, identity: Callable[[], bytes | None]) -> bytes:
        # Answers of a version whose files are not known are for this load alone.
        scope = blake2b(identity() or uuid4().bytes, digest_size=SCOPE_SIZE).digest()
        self._prefixes[scope] = b"%s%s:%d:" % (PREFIX, name.encode("utf-8", "surrogateescape"), version)
        return scope

    def close_scope(self, scope: bytes) -> None:
        """Nothing: other servers, and a later load of the same files, may use the answers."""

    def get(self, key: bytes) -> None:
        return None

    def look_up(self, key: bytes, fault_of: FaultOf, on_found: OnFound) -> GiveUp | None:
        if self._breaker.is_open:
            self._count("left_out")
            return None
        added = self._look_ups.add(key, fault_of, on_found)
        with self._work:
            self._work.notify()
        return added.give_up

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
        """Connect, and read and write until Redis is unreachable or slow; then try again after a pause."""
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
        """Return why Redis cannot be used now; empty if it answers in time."""
        try:
            connection.check()
            began_s = time.monotonic()
            connection.check()
        except Unreachable as error:
            connection.close()
            return str(error)
        return "it does not answer in time" if time.monotonic() - began_s > self._budget_s else ""

    def _serve(self, connection: RedisConnection) -> None:
        """Read and write until the circuit is open or the cache is closed. Raises Unreachable."""
        while True:
            with self._work:
                while not (self._look_ups.has_untaken or self._unwritten or self._is_over):
                    self._work.wait()
            if self._is_over:
                return
            self._exchange(connection)

    @property
    def _is_over(self) -> bool:
        return self._breaker.is_open or self._closing.is_set()

    def _exchange(self, connection: RedisConnection) -> None:
        """Make one round trip. Raises Unreachable; then the look-ups find nothing."""
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
            in_time |= look_up.end(self._response(look_up, name, value))
        if in_time:
            self._breaker.late_in_a_row = 0
        if errors:
            self._count("unwritten", len(errors))
            self._log_once(f"the response cache at {self._options.address} stores no more answers: {errors[0]}")

    def _values(self) -> list[tuple[bytes, bytes]]:
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
        """Return the name of a key's value in Redis; a digest, from which no request can be read."""
        digest = blake2b(key, digest_size=_NAME_DIGEST).hexdigest()
        return self._prefixes[key[:SCOPE_SIZE]] + digest.encode()

    def _response(self, look_up: PendingLookUp, name: bytes, value: Any) -> CachedResponse | None:
        if value == b"":
            return None
        try:
            if type(value) is not bytes:  # an error, as it is of another type; or anything, from another service
                raise DamagedAnswer("another program wrote it")
            found = decode(name, value)
            fault = look_up.fault_of(found.layout)
            if fault:
                raise DamagedAnswer(fault)
            return found
        except DamagedAnswer as error:
            self._count("damaged")
            self._log_once(f"the response cache at {self._options.address} has a damaged answer: {error}")
            return None

    # --- faults

    def _note_late(self, count: int) -> None:
        self._count("late", count)
        self._breaker.note_late(count)
        if self._breaker.is_open:
            with self._work:
                self._work.notify_all()

    def _count(self, fault: str, count: int = 1) -> None:
        with self._work:
            self._faults[fault] += count

    def _log_once(self, text: str) -> None:
        with self._work:
            if text in self._logged or len(self._logged) > _READ_AT_ONCE:
                return
            self._logged.add(text)
        _log.warning("%s", text)


_PER_S = 1000


class Unreachable(Exception):
    """Redis did not answer; the argument is the reason, without any secret."""


class RedisConnection:
    """Made and used on one thread, which it may block for as long as its timeouts allow."""

    def __init__(self, options: RedisOptions) -> None:
        """Connects at the first command."""
        self._client = Redis(
            host=options.host,
            port=options.port,
            username=options.user or None,
            password=options.password or None,
            db=options.db,
            socket_connect_timeout=options.connect_timeout / _PER_S or None,
            socket_timeout=options.socket_timeout / _PER_S or None,
            protocol=2,
            retry=Retry(NoBackoff(), 0),  # the cache's own threads decide when to try again
            ssl=options.has_tls,
            ssl_certfile=options.cert or None,
            ssl_keyfile=options.key or None,
            ssl_ca_certs=options.cacert or None,
            ssl_ca_path=options.cacert_dir or None,
        )

    def check(self) -> None:
        """Connect, unless it is connected, and have the server answer. Raises Unreachable."""
        try:
            self._client.ping()
        except Exception as error:
            raise self._unreachable(error) from None

    def exchange(
        self, names: Sequence[bytes], largest: int, values: Sequence[tuple[bytes, bytes]]
    ) -> tuple[list[Any], list[Exception]]:
        """In one round trip: read at most `largest` bytes of the values of `names`, and set `values`.

        Returns what was read, b"" for a name without a value, or the error of it; and the errors of those to be set.
        Raises Unreachable.
        """
        pipeline = self._client.pipeline(transaction=False)
        for name in names:
            pipeline.getrange(name, 0, largest - 1)
        for name, value in values:
            pipeline.set(name, value)
        try:
            replies: list[Any] = pipeline.execute(raise_on_error=False)
        except Exception as error:
            raise self._unreachable(error) from None
        read, written = replies[: len(names)], replies[len(names) :]
        return read, [reply for reply in written if isinstance(reply, Exception)]

    def close(self) -> None:
        self._client.close()

    def _unreachable(self, error: Exception) -> Unreachable:
        """Redis never repeats a password in its errors, and redis-py does not either."""
        if isinstance(error, (RedisError, OSError)):
            return Unreachable(str(error).rstrip(".") or type(error).__name__)
        # redis-py lets out whatever its parser raises: another service answers.
        return Unreachable(f"its reply is not one of Redis: {error!r}")
