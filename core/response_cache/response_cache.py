"""The response cache: cached responses, their keys, and the cache in memory.

    ResponseCache  the protocol
    ├── LocalCache  in the memory of the process that runs the models
    └── RedisCache  in a Redis server, which several servers share (redis_cache.py)

Source: docs/spec/schedulers.md section 3.7.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from operator import attrgetter
from struct import Struct
from sys import getsizeof
from typing import Protocol

from trident.core.compiled import mypyc_attr
from trident.core.inference.request import CloseReason, InferenceRequest, InferenceTimes, InputTensor, Parameter
from trident.core.inference.response import InferenceResponse, PackedOutputs
from trident.core.inference.tensors import Buffer, PackedTensors, Shape, TensorLayout, layout_of, wire_bytes
from trident.core.memo import Memo
from trident.core.observability.statistics import RemoteCacheMetrics, ResponseCacheMetrics

_TIMES = frozenset(InferenceTimes(0, 0, 0, 0, 0, CloseReason.IDLE).parameters())


class CachedResponse:
    """The outputs of a response, one run of bytes, and its parameters. It never changes, so any thread may read it.

    `nbytes` is its memory in bytes, without `layout`, which similar responses share.
    """

    __slots__ = ("content", "layout", "nbytes", "parameters")

    def __init__(self, layout: TensorLayout, content: bytes, parameters: dict[str, Parameter] | None) -> None:
        self.layout = layout
        self.content = content
        self.parameters = parameters
        self.nbytes = block_size(getsizeof(self)) + block_size(getsizeof(content))
        if parameters is not None:
            texts = (each for pair in parameters.items() for each in pair)
            self.nbytes += getsizeof(parameters) + sum(map(getsizeof, texts))

    @classmethod
    def of(cls, response: InferenceResponse) -> CachedResponse:
        """Copy the parts that all answers to the request share."""
        outputs = response.outputs
        if type(outputs) is PackedOutputs:
            layout, content = outputs.layout, bytes(outputs.content)
        else:
            contents = [output.content() for output in outputs]
            named = zip(outputs, contents, strict=True)
            layout = layout_of([(out.name, out.datatype, tuple(out.shape), len(each)) for out, each in named])
            content = b"".join(contents)
        # The times of the execution are not those of a later answer.
        lasting = {name: value for name, value in (response.parameters or {}).items() if name not in _TIMES}
        return cls(layout, content, lasting or None)

    def answer(self, request: InferenceRequest, name: str, version: int) -> InferenceResponse:
        parameters = None if self.parameters is None else self.parameters.copy()
        outputs = PackedOutputs(self.layout, memoryview(self.content))
        return InferenceResponse(name, version, outputs, id=request.id, parameters=parameters)


def block_size(nbytes: int) -> int:
    """Return the heap memory of an object of that size: blocks are multiples of 16 bytes, with a header."""
    return (nbytes + 23) & ~15


def layout_size(layout: TensorLayout) -> int:
    size = getsizeof(layout) + getsizeof(layout.entries)
    for entry in layout.entries:
        _, _, shape, start, end = entry
        size += getsizeof(entry) + getsizeof(shape) + sum(map(getsizeof, (*shape, start, end)))
    return size


# Gets the response, or None if none came in time. Any thread; the caller catches what it raises.
OnFound = Callable[[CachedResponse | None], None]
# Says why outputs of this layout are none that the model could have answered with; empty if they are.
FaultOf = Callable[[TensorLayout], str]


GiveUp = Callable[[], object]
"""Ends a look-up at once as one that found nothing, unless it has ended."""


class ResponseCache(Protocol):
    """Every method may be called on any thread, the hub's included, and returns within microseconds.

    Keys begin with a scope of the cache and have the form of `request_key`.
    """

    answers_later: bool
    """True if answers are not in this process: `look_up` finds them, and `get` none."""

    def open_scope(self, name: str, version: int, identity: Callable[[], bytes | None]) -> bytes:
        """Return the scope of one load of a version of a model; scopes of one cache have the same length.

        `identity` returns a digest of all that decides the version's answers besides the request, or None. It may read
        the model's files, so this method is for loader threads alone.
        """
        ...

    def close_scope(self, scope: bytes) -> None:
        """Remove the responses that only the version of that scope could use."""
        ...

    def get(self, key: bytes) -> CachedResponse | None:
        """Return the response, if it is in this process."""
        ...

    def look_up(self, key: bytes, fault_of: FaultOf, on_found: OnFound) -> GiveUp | None:
        """Look for a response elsewhere; `on_found` is called once, on another thread, within the cache's budget. What
        has a fault is not found.

        Returns None if the cache cannot be asked now; then `on_found` is not called.
        """
        ...

    def put(self, key: bytes, response: CachedResponse) -> None:
        """Store a response if it fits."""
        ...

    def holds(self, nbytes: int) -> bool:
        """Return whether a response with outputs of `nbytes` bytes fits."""
        ...

    def metrics(self) -> ResponseCacheMetrics | RemoteCacheMetrics: ...

    def close(self) -> None:
        """End threads and connections. Look-ups in progress find nothing."""
        ...


# Triton hashes the names and the bytes of the inputs only. Here datatypes, shapes, requested outputs, parameters and
# the marks of a sequence count, too: a request that differs in one of them can have another answer. The id, the
# priority and the timeout do not decide it. Source: docs/spec/schedulers.md section 3.7.


DIGEST_SIZE = 32
# A longer key is replaced by its digest. Up to this size the bytes themselves cost less than a digest.
LONGEST_PLAIN = 256
_LENGTH = Struct("<Q")
_PLAIN, _DIGEST = b"=", b"#"
_NOTHING_ELSE = _LENGTH.pack(0)

# By layout: the description of the inputs, and whether their bytes are in the order of their names.
_described: Memo[TensorLayout, tuple[bytes, bool]] = Memo(1024)


def request_key(scope: bytes, request: InferenceRequest) -> bytes:
    """Return the key of a validated `request`. It begins with `scope`, which has the same length in every key.

    Two requests have the same key if and only if all that decides the answer is equal, in whatever form the inputs
    arrived. (Keys of large requests are digests, so equal keys of different requests are possible in theory.)
    """
    inputs = request.inputs
    contents: list[Buffer] = []
    if isinstance(inputs, PackedTensors):
        known = _described.get(inputs.layout)
        if known is None:
            entries = sorted(inputs.layout.entries)
            text = _describe([(name, datatype, shape, end - start) for name, datatype, shape, start, end in entries])
            known = _described[inputs.layout] = text, entries == list(inputs.layout.entries)
        description, is_sorted = known
        if is_sorted:
            contents.append(inputs.content)
        else:
            entries = sorted(inputs.layout.entries)
            contents += [inputs.content[start:end] for _, _, _, start, end in entries]
    else:
        tensors = sorted(inputs, key=attrgetter("name"))
        contents += [_content(tensor) for tensor in tensors]
        sizes = map(len, contents)
        description = _describe([(t.name, t.datatype, t.shape, size) for t, size in zip(tensors, sizes, strict=True)])
    parts = [description, _other(request), *contents]
    size = sum(map(len, parts))
    if size <= LONGEST_PLAIN:
        return b"".join((scope, _PLAIN, *parts))
    digest = blake2b(digest_size=DIGEST_SIZE)
    for part in parts:
        digest.update(part)
    return b"".join((scope, _DIGEST, digest.digest()))


def _content(tensor: InputTensor) -> Buffer:
    content = tensor.data
    return content if type(content) is memoryview else wire_bytes(content)


def _describe(tensors: list[tuple[str, str, Shape, int]]) -> bytes:
    text = repr([(name, datatype, tuple(shape), size) for name, datatype, shape, size in tensors]).encode()
    return _LENGTH.pack(len(text)) + text


def _other(request: InferenceRequest) -> bytes:
    """Return all that decides the answer besides the inputs; empty for most requests."""
    parameters = request.parameters
    if not (parameters or request.outputs or request.correlation_id or request.sequence_start or request.sequence_end):
        return _NOTHING_ELSE
    text = repr(
        (
            request.outputs,
            sorted(parameters.items()) if parameters else [],
            request.correlation_id,
            request.sequence_start,
            request.sequence_end,
        )
    ).encode("utf-8", "surrogatepass")
    return _LENGTH.pack(len(text)) + text


# --- in memory

_log = logging.getLogger("trident.cache")

_SCOPE = Struct("<Q")
_LASTING_AT_MOST = 10_000
# The memory of the cache itself with one response in it.
_ALONE = getsizeof(OrderedDict.fromkeys((b"",)))


@mypyc_attr(allow_interpreted_subclasses=True)
class LocalCache:
    """Implements ResponseCache in at most `size` bytes of memory; the least recently used response is evicted first.

    Each load of a model has its own scope, so that a reload begins without answers. In one that is `lasting` they
    outlive the unload of a version, and are found again by its next load, if its identity is the same.
    """

    answers_later = False

    def __init__(self, size: int, *, lasting: bool = False) -> None:
        self.size = size
        self._lasting: Memo[bytes, bytes] | None = Memo(_LASTING_AT_MOST) if lasting else None
        self._scopes = itertools.count(1)
        self._lock = threading.Lock()
        # --- guarded by the lock
        # The least recently used one is the first.
        self._responses: OrderedDict[bytes, CachedResponse] = OrderedDict()
        # The number of responses of each layout.
        self._layouts: Counter[TensorLayout] = Counter()
        # The memory of responses, keys and layouts.
        self._nbytes = 0
        self._evictions = 0

    def open_scope(self, name: str, version: int, identity: Callable[[], bytes | None]) -> bytes:
        found = identity() if self._lasting is not None else None
        if self._lasting is None or found is None:
            return _SCOPE.pack(next(self._scopes))
        with self._lock:
            if found not in self._lasting:
                self._lasting[found] = _SCOPE.pack(next(self._scopes))
            return self._lasting[found]

    def look_up(self, key: bytes, fault_of: FaultOf, on_found: OnFound) -> None:
        """None: `get` has found all that there is."""

    def get(self, key: bytes) -> CachedResponse | None:
        with self._lock:
            response = self._responses.get(key)
            if response is not None:
                self._responses.move_to_end(key)
            return response

    def put(self, key: bytes, response: CachedResponse) -> None:
        """Store it, unless there is one of that key already or it is larger than the whole cache."""
        needed = _size(key, response) + layout_size(response.layout) + _ALONE
        if needed > self.size:
            _log.warning(
                "Failed to insert key into response cache: Requested byte_size: %d is greater than total cache "
                "size: %d",
                needed,
                self.size,
            )
            return
        with self._lock:
            if key in self._responses:
                return
            self._responses[key] = response
            self._nbytes += _size(key, response)
            if not self._layouts[response.layout]:
                self._nbytes += layout_size(response.layout)
            self._layouts[response.layout] += 1
            while self._used > self.size and len(self._responses) > 1:
                self._remove(next(iter(self._responses)))
                self._evictions += 1
            if self._used > self.size:
                self._responses = OrderedDict(self._responses)  # a dict never frees the slots of removed entries

    def holds(self, nbytes: int) -> bool:
        return nbytes < self.size

    def close_scope(self, scope: bytes) -> None:
        with self._lock:
            if self._lasting is not None and scope in self._lasting.values():
                return
            for key in [key for key in self._responses if key.startswith(scope)]:
                self._remove(key)
            self._responses = OrderedDict(self._responses)

    def metrics(self) -> ResponseCacheMetrics:
        with self._lock:
            return ResponseCacheMetrics(
                size=self.size, used=self._used, entries=len(self._responses), evictions=self._evictions
            )

    def close(self) -> None:
        """Nothing to close."""

    @property
    def _used(self) -> int:
        return self._nbytes + getsizeof(self._responses)

    def _remove(self, key: bytes) -> None:
        response = self._responses.pop(key)
        self._nbytes -= _size(key, response)
        self._layouts[response.layout] -= 1
        if not self._layouts[response.layout]:
            del self._layouts[response.layout]
            self._nbytes -= layout_size(response.layout)


def _size(key: bytes, response: CachedResponse) -> int:
    return block_size(getsizeof(key)) + response.nbytes
