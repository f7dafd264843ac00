"""One front end as the engine sees it: its connection, its shared memory, its requests.

Source: docs/architecture.md section 5.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from trident.core.errors import ServerError
from trident.core.inference.pending_request import CancelCause, Deferred, PendingRequest, StreamedRequest
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import Array, Buffer
from trident.core.interprocess.frames import LARGE, BadFrame, Frame, FrameReader, SendQueue, frame
from trident.core.interprocess.shared_memory import SharedMemory
from trident.core.observability.tracing.trace import TraceEvent
from trident.core.remote.calls import from_plain, read_plain
from trident.core.remote.wire import (
    ACK,
    CALL,
    CANCEL,
    RELEASE,
    REQUEST,
    RESULT,
    STREAMED,
    TO_ENGINE,
    TRACED,
    RequestReader,
    ResponseWriter,
    failed_response,
)

if TYPE_CHECKING:
    from trident.core.engine.protocol import Engine

_log = logging.getLogger("trident.engine")

_TRACED = tuple[tuple[TraceEvent, ...], tuple[TraceEvent, ...]]
_RECEIVE_SIZE = 1 << 16
OnCall = Callable[["FrontEnd", int, memoryview], None]
OnBlocked = Callable[["FrontEnd", bool], None]
# Makes a call on another thread, after all earlier ones.
Elsewhere = Callable[[Callable[[], None]], object]


class FrontEnd:
    """The server's thread calls `read` and `close`; any thread may send.

    Responses are collected until `flush`, so that those of a batch leave together. `on_blocked` is told when the socket
    takes no more for now and when it has taken everything; in between the server calls `flush` when it takes more.
    Requests with many strings are submitted `elsewhere`: a million of them is unpacked in half a second, for which all
    front ends would wait.
    """

    def __init__(
        self, sock: socket.socket, engine: Engine, on_call: OnCall, on_blocked: OnBlocked, elsewhere: Elsewhere
    ) -> None:
        self.sock = sock
        self.is_closed = False
        # The versions that it holds, as (name, number). The server's thread.
        self.holds: set[tuple[str, int]] = set()
        self._engine = engine
        self._on_call = on_call
        self._elsewhere = elsewhere
        self._reader = FrameReader(TO_ENGINE, "the front end")
        self._memory: SharedMemory | None = None
        # The offsets of outputs that models write into the shared memory, until they are sent, each with a mark of its
        # own: where one was sent and released, the next one may begin before the engine has forgotten the first.
        self._unsent: dict[int, object] = {}
        self._requests = RequestReader(self._view_of)
        self._responses = ResponseWriter(self._share)
        self._pending: dict[int, PendingRequest] = {}
        self._flush = self.flush  # one object for all requests: a batch calls it once
        self._deferred = Deferred()
        self.queue = SendQueue(sock, partial(on_blocked, self))

    @property
    def has_greeted(self) -> bool:
        return self._memory is not None

    # --- from the front end

    def read(self) -> bool:
        """Read what has arrived and act on it. False if the front end has closed its end.

        Raises BadFrame, and other errors for what no front end sends.
        """
        try:
            frames = self._reader.receive(self.sock) if self._memory is not None else self._receive_greeting()
        except BlockingIOError:
            return True
        except OSError:
            return False
        try:
            for found in frames:
                self._take(found)
        finally:
            self._deferred.run()
        if self.queue:
            self.flush()
        return True

    def _receive_greeting(self) -> list[Frame]:
        """The first frame is sent in one piece, with the descriptor of the shared memory."""
        content, descriptors, _, _ = socket.recv_fds(self.sock, _RECEIVE_SIZE, 1)
        if not content:
            raise ConnectionResetError("the front end closed its socket")
        if not descriptors:
            raise BadFrame("no shared memory with its first frame")
        self._memory = SharedMemory.attach(descriptors[0])
        return self._reader.feed(content)

    def _take(self, found: Frame) -> None:
        kind, flags, shared, number, content = found
        if kind == REQUEST:
            self._submit(number, content, shared, flags)
        elif kind == CANCEL:
            pending = self._pending.get(number)
            if pending is not None:
                pending.cancel(CancelCause.of_number(flags))
        elif kind == ACK:
            self._acknowledge(number, content)
        elif kind == RELEASE:
            assert self._memory is not None
            self._memory.released(content, number)
        elif kind == TRACED:
            self._end_trace(number, content)
        elif kind == CALL:
            self._on_call(self, number, content)

    def _submit(self, number: int, content: memoryview, shared: int, flags: int) -> None:
        request = self._requests.read(content, shared, flags)
        try:
            model = self._engine.model(request.model_name, request.model_version)
        except ServerError as error:
            self._respond(number, InferenceResponse.failed(request, error))
            return
        make = StreamedRequest if flags & STREAMED else PendingRequest
        if shared:
            request.output_memory = self._output_memory
        is_slow = (shared or len(content) >= LARGE) and request.may_be_passed
        defer = None if is_slow else self._deferred.add
        pending = make(request, partial(self._respond, number), defer=defer, flush=self._flush)
        self._pending[number] = pending
        if is_slow:
            self._elsewhere(partial(model.submit, pending))
        else:
            model.submit(pending)

    def _acknowledge(self, number: int, content: memoryview) -> None:
        pending = self._pending.get(number)
        if pending is None:
            return  # its final response is on the way
        assert isinstance(pending, StreamedRequest)
        pending.take(int(bytes(content)))

    def _end_trace(self, number: int, content: memoryview) -> None:
        ahead, behind = from_plain(read_plain(content), _TRACED)
        self._engine.trace_answered(number, ahead, behind)

    def _view_of(self, offset: int, size: int) -> memoryview:
        assert self._memory is not None
        return self._memory.view(offset, size).data

    # --- to the front end

    def _respond(self, number: int, response: InferenceResponse) -> None:
        if response.final:
            self._pending.pop(number, None)
        if self.is_closed:
            return
        try:
            content = self._responses.write(response, number)
        except Exception as error:  # a bug of the engine must reach the caller and not end the instance thread
            if self.is_closed:
                return  # the memory was closed meanwhile
            content = failed_response(response, error, number)
        self.queue.append(content)

    def _share(self, content: Buffer) -> int | None:
        """Copy a large output into shared memory, unless the model wrote it there. Returns its offset; None without
        room: then the socket carries it."""
        if self._memory is None:
            return None
        if self._unsent:
            written = self._memory.offset_of(content)
            if written is not None and self._unsent.pop(written, None) is not None:
                return written
        return self._memory.share(content)

    def _output_memory(self, size: int) -> Array | None:
        """Shared memory for an output. It is free again when nothing refers to it and it was not sent. Any thread."""
        memory = self._memory
        offset = None if memory is None else memory.pages.allocate(size)
        if offset is None or memory is None:
            return None
        mark = self._unsent[offset] = object()
        try:
            return memory.borrow(offset, size, partial(self._forget, offset, mark))
        except ValueError:  # it was closed meanwhile
            return None

    def _forget(self, offset: int, mark: object) -> None:
        """The engine does not refer to an output any more."""
        if self._unsent.get(offset) is mark:
            del self._unsent[offset]
            assert self._memory is not None
            self._memory.pages.free(offset)

    def release_memory(self) -> None:
        """Return to the system the shared memory that no response uses. Any thread."""
        memory = self._memory
        if memory is not None:
            memory.reclaim()

    def send(self, content: bytes) -> None:
        """Send a frame now, after those that were collected. Any thread."""
        self.queue.append(content)
        self.flush()

    def result(self, number: int, content: bytes) -> None:
        """Answer a call. Any thread."""
        self.send(frame(RESULT, number, (content,)))

    def flush(self) -> None:
        """Send what was collected, as much as the socket takes. Any thread; does not block."""
        self.queue.flush()

    def close(self) -> None:
        """Cancel its requests, release what it holds, and close its memory and its socket. The server's thread."""
        self.is_closed = True
        self.queue.close()
        for pending in list(self._pending.values()):
            pending.cancel()
        self._pending.clear()
        for name, number in self.holds:
            self._engine.release_version(name, number)
        self.holds.clear()
        if self._memory is not None:
            self._memory.close()
        self.sock.close()
