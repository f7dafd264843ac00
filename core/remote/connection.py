"""One connection to the engine as the front end sees it, from its greeting to its loss.

Source: docs/architecture.md section 5.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from trident.core.errors import InvalidRequest, OutOfMemory
from trident.core.inference.pending_request import CancelCause, PendingRequest, StreamedRequest, deliver
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import Origin
from trident.core.inference.tensors import Array, Buffer
from trident.core.interprocess.frames import BadFrame, FrameReader, SendQueue, frame
from trident.core.interprocess.shared_memory import SharedMemory
from trident.core.observability.tracing.trace import TraceEvent
from trident.core.remote.calls import EngineGone, EngineState, from_plain, read_plain
from trident.core.remote.wire import (
    ACK,
    CALL,
    CANCEL,
    HELLO,
    RELEASE,
    RESPONSE,
    RESULT,
    STREAMED,
    TO_FRONT_END,
    TRACED,
    read_response,
    write_request,
)
from trident.core.waiting import Mailbox

if TYPE_CHECKING:
    from trident.core.remote.engine_client import RemoteEngine


class Link(Protocol):
    """Drives a RemoteEngine: calls its `read`, `flush` and `look` on one thread, `look` about every 50 ms."""

    def start(self, engine: RemoteEngine) -> None:
        """Begin to drive. Called once."""

    def wake(self) -> None:
        """Have `flush` called soon, once for all calls until then. Any thread."""

    def mailbox(self) -> Mailbox[Any]:
        """Return a mailbox for the calling thread or greenlet."""
        ...

    def close(self) -> None:
        """Stop driving. After this returns nothing of the engine is called any more."""


SOON = "it is being restarted; send the request again in a few seconds"

OnState = Callable[[EngineState], None]
OnResult = Callable[[object], None]

LOST = object()
"""The result of a call whose engine ended before it answered."""

# A request that the engine has, and the shared memory that was allocated for its inputs.
_Pending = tuple[PendingRequest, list[Array]]


class SharedMemoryFull(Exception):
    """The shared memory has no space for an input now."""


class EngineConnection:
    """The link's thread calls `read` and `lose`; any thread calls the other methods."""

    def __init__(self, path: str, memory_bytes: int, on_state: OnState, wake: Callable[[], None]) -> None:
        """Connect to the engine's socket at `path`. Raises OSError if no process listens there."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.setblocking(False)  # already for the connect, which blocks while many others connect
        try:
            self.sock.connect(path)
            self.memory = SharedMemory.create(memory_bytes)
            try:
                socket.send_fds(self.sock, [frame(HELLO, 0)], [self.memory.descriptor])
            except BaseException:
                self.memory.close()
                raise
        except MemoryError as error:
            self.sock.close()
            raise OutOfMemory(
                f"cannot share {memory_bytes} bytes of memory with the engine: {error} "
                "(set by --http-worker-memory-bytes)"
            ) from error
        except BaseException:
            self.sock.close()
            raise
        self.memory.on_unused = wake
        self._on_state = on_state
        self._wake = wake
        self._reader = FrameReader(TO_FRONT_END, "the engine")
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._calls: dict[int, OnResult] = {}
        self._queue = SendQueue(self.sock)
        self._acknowledging = threading.Lock()
        self._taken: dict[int, int] = {}
        self._is_lost = False

    @property
    def wants_to_write(self) -> bool:
        return self._queue.is_blocked

    @property
    def in_flight(self) -> int:
        """Number of requests that the engine has not answered."""
        return len(self._pending)

    # --- to the engine

    def submit(self, pending: PendingRequest) -> None:
        """Send the request. Raises SharedMemoryFull, EngineGone, or InvalidRequest if it cannot be sent."""
        request = pending.request
        number = next(self._numbers)
        held: list[Array] = []
        flags = 0
        if isinstance(pending, StreamedRequest):
            flags = STREAMED
            pending.on_take = self._acknowledge
        try:
            content = write_request(request, number, partial(self._share, held), flags)
        except TypeError as error:  # a value that JSON cannot hold
            raise InvalidRequest(f"{request.log_prefix}the request cannot be sent to the engine: {error}") from None
        pending.number = number
        pending.on_cancel = self._cancel
        self._pending[number] = (pending, held)
        if self._is_lost and self._pending.pop(number, None) is not None:
            raise EngineGone("engine unavailable: its process exited before it received the request")
        self._send_soon(content)

    def _share(self, held: list[Array], content: Buffer) -> int | None:
        """Return the offset of a large input in shared memory: it was received there, or is copied there and `held`.

        None if the memory is too small for it: then it goes through the socket. Raises SharedMemoryFull.
        """
        offset = self.memory.offset_of(content)
        if offset is None:
            size = len(content)
            if size > self.memory.pages.capacity:
                return None
            memory = self.memory.allocate(size)
            if memory is None:
                raise SharedMemoryFull
            memory[:] = memoryview(content)
            held.append(memory)
            offset = self.memory.offset_of(memory)
            assert offset is not None
        return offset

    def _cancel(self, pending: PendingRequest) -> None:
        if pending.number in self._pending:
            cause = pending.cancelled or CancelCause.CLIENT
            self._send_soon(frame(CANCEL, pending.number, flags=cause.number))

    def _acknowledge(self, pending: StreamedRequest, count: int) -> None:
        number = pending.number
        if number in self._pending:
            with self._acknowledging:
                self._taken[number] = self._taken.get(number, 0) + count
            self._wake()

    def trace_answered(self, number: int, ahead: Sequence[TraceEvent], behind: Sequence[TraceEvent]) -> None:
        self._send_soon(frame(TRACED, number, (orjson.dumps((ahead, behind)),)))

    def call(self, content: bytes, on_result: OnResult) -> int:
        """Send a call. `on_result` gets the content of its result, a memoryview, on the link's thread; or LOST."""
        number = next(self._numbers)
        self._calls[number] = on_result
        if self._is_lost and self._calls.pop(number, None) is not None:
            on_result(LOST)
        else:
            self._send_soon(frame(CALL, number, (content,)))
        return number

    def forget(self, number: int) -> None:
        self._calls.pop(number, None)

    def _send_soon(self, content: bytes) -> None:
        self._queue.append(content)
        self._wake()

    def flush(self) -> None:
        if self._taken:  # one frame for each request, however many of its responses were taken one by one
            with self._acknowledging:
                taken, self._taken = self._taken, {}
            for number, count in taken.items():
                self._queue.append(frame(ACK, number, (b"%d" % count,)))
        release = self.memory.release(RELEASE)
        if release:
            self._queue.append(release)
        self._queue.flush()

    # --- from the engine

    def read(self) -> None:
        """Read arrived data. Raises OSError at the end of the connection, and BadFrame."""
        try:
            frames = self._reader.receive(self.sock)
        except BlockingIOError:
            return
        for kind, flags, shared, number, content in frames:
            if kind == RESPONSE:
                found = self._pending.get(number)
                if found is None:
                    raise BadFrame(f"a response to the unknown request {number}")
                pending = found[0]
                response = read_response(content, flags, shared, pending.request.id, self.memory)
                if response.final:
                    del self._pending[number]
                deliver(pending, response)
            elif kind == RESULT:
                on_result = self._calls.pop(number, None)
                if on_result is not None:
                    on_result(content)
            else:
                self._on_state(from_plain(read_plain(content), EngineState))

    def lose(self, reason: str) -> None:
        """End the connection: every request and call that waits for the engine gets EngineGone."""
        self._is_lost = True
        self._queue.close()
        self.sock.close()
        while self._pending:
            try:
                _, (pending, _) = self._pending.popitem()
            except KeyError:
                break
            pending.refuse(gone(pending.request, reason), Origin.FAILED)
        while self._calls:
            try:
                _, on_result = self._calls.popitem()
            except KeyError:
                break
            on_result(LOST)
        self.memory.close()


def gone(request: InferenceRequest, reason: str) -> EngineGone:
    return EngineGone(
        f"engine unavailable: {reason}",
        hint=SOON,
        model=request.model_name,
    )
