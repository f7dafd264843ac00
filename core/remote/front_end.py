"""One front end, as the engine sees it: its connection, its memory, its requests.

Source: docs/architecture.md section 5.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import orjson

from core.inference.deferred import Deferred
from core.inference.pending_request import PendingRequest
from core.inference.response import InferenceResponse
from core.inference.tensors import Buffer
from core.remote.calls.request_message import RequestReader
from core.remote.calls.response_message import ResponseWriter, failed_response
from core.remote.memory.page_allocator import PageAllocator
from core.remote.memory.shared_memory_block import SharedMemoryBlock
from core.remote.transport.frames import (
    CALL,
    CANCEL,
    HELLO,
    RELEASE,
    REQUEST,
    RESULT,
    TO_ENGINE,
    VERSION,
    BadFrame,
    Frame,
    FrameReader,
    frame,
)
from core.remote.transport.outbox import Outbox

if TYPE_CHECKING:
    from core.engine.protocol import Engine

_log = logging.getLogger("trident.engine")

RECEIVE_SIZE = 1 << 18
_MOST_DESCRIPTORS = 4
# More than a greeting has.
_MOST_BEFORE_GREETING = 4096
OnCall = Callable[["FrontEnd", int, memoryview], None]
OnBlocked = Callable[["FrontEnd", bool], None]


class FrontEnd:
    """`read` is called on the server's thread; responses come on any.

    What is sent is collected until `flush`, so that the responses to a batch leave together. `on_blocked` is told when
    the socket takes no more for now, and when it does again; in between `flush` is to be called once it takes more.
    """

    def __init__(self, sock: socket.socket, engine: Engine, on_call: OnCall, on_blocked: OnBlocked) -> None:
        self.sock = sock
        self.is_closed = False
        self._engine = engine
        self._on_call = on_call
        self._reader = FrameReader(TO_ENGINE)
        self._buffer = bytearray(RECEIVE_SIZE)
        self._view = memoryview(self._buffer)
        self._descriptors: list[int] = []
        self._before_greeting = 0
        self._arena: SharedMemoryBlock | None = None
        self._slots: PageAllocator | None = None
        self._requests = RequestReader(self._view_of)
        self._responses = ResponseWriter(self._place)
        self._pending: dict[int, PendingRequest] = {}
        self._flush = self.flush  # one object for all requests, so that those of a batch are seen to share it
        self._deferred = Deferred()
        self._outbox = Outbox(sock, partial(on_blocked, self))

    @property
    def is_welcome(self) -> bool:
        """Whether it has said who it is."""
        return self._arena is not None

    # --- from the front end

    def read(self) -> bool:
        """Take what has come, and do it. False when the front end is gone. Raises BadFrame."""
        try:
            if self._arena is None:
                content, descriptors, _, _ = socket.recv_fds(self.sock, RECEIVE_SIZE, _MOST_DESCRIPTORS)
                self._descriptors += descriptors
                self._before_greeting += len(content)
            else:
                content = bytes(self._view[: self.sock.recv_into(self._buffer)])
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not content:
            return False
        try:
            for found in self._reader.feed(content):
                self._take(found)
        finally:
            self._deferred.run()
        if self._arena is None:
            self._check_unwelcome()
        if self._outbox:
            self.flush()
        return True

    def _take(self, found: Frame) -> None:
        kind, _, placed, number, content = found
        if self._arena is None and kind != HELLO:
            raise BadFrame("a frame before the first one, which says who sends")
        if kind == REQUEST:
            self._submit(number, content, placed)
        elif kind == CANCEL:
            pending = self._pending.get(number)
            if pending is not None:
                self._engine.cancel(pending)
        elif kind == RELEASE:
            self._release(number)
        elif kind == CALL:
            self._on_call(self, number, content)
        else:
            self._greet(content)

    def _check_unwelcome(self) -> None:
        """Who has not said who it is must not make the engine hold more and more for it."""
        if len(self._descriptors) > 1 or self._before_greeting > _MOST_BEFORE_GREETING:
            raise BadFrame(
                f"{self._before_greeting} bytes and {len(self._descriptors)} descriptors before a greeting was whole"
            )

    def _greet(self, content: memoryview) -> None:
        if self._arena is not None:
            raise BadFrame("a second greeting")
        descriptors, self._descriptors = self._descriptors, []
        try:
            version, middle = _greeting(content)
            if version != VERSION:
                raise BadFrame(f"version {version} of the protocol, expected {VERSION}")
            if len(descriptors) != 1:
                raise BadFrame(f"a greeting with {len(descriptors)} descriptors")
            arena = SharedMemoryBlock.attach(descriptors.pop())
        except ValueError as error:
            raise BadFrame(f"a greeting that cannot be: {error}") from None
        finally:
            _close(descriptors)
        if not 0 <= middle <= arena.size:
            arena.close()
            raise BadFrame("a greeting with responses outside of the arena")
        self._slots = PageAllocator(middle, arena.size)
        self._arena = arena

    def _submit(self, number: int, content: memoryview, placed: int) -> None:
        request = self._requests.read(content, placed)
        if number in self._pending:
            raise BadFrame(f"a second request number {number}")
        pending = PendingRequest(request, partial(self._respond, number), defer=self._deferred.add, flush=self._flush)
        self._pending[number] = pending
        self._engine.submit(pending)

    def _view_of(self, place: int, size: int) -> memoryview:
        assert self._arena is not None
        try:
            return self._arena.view(place, size).data
        except ValueError as error:
            raise BadFrame(str(error)) from None

    def _release(self, place: int) -> None:
        assert self._slots is not None
        try:
            self._slots.free(place)
        except ValueError as error:
            raise BadFrame(str(error)) from None

    # --- to the front end

    def _respond(self, number: int, response: InferenceResponse) -> None:
        if response.final:
            self._pending.pop(number, None)
        if self.is_closed:
            return
        try:
            content = self._responses.write(response, number)
        except Exception as error:  # an engine's fault must reach the caller, not end the instance thread
            if self.is_closed:
                return  # its memory has just gone with it
            content = failed_response(response, error, number)
        self._outbox.append(content)

    def _place(self, content: Buffer) -> int | None:
        """Where a large output goes in the arena; None if that is full: then it goes through the socket."""
        if self._slots is None or self._arena is None:
            return None
        size = len(content)
        place = self._slots.allocate(size)
        if place is not None:
            self._arena.view(place, size)[:] = memoryview(content)
        return place

    def send(self, content: bytes) -> None:
        """Send a frame now, after those that wait. Any thread."""
        self._outbox.append(content)
        self.flush()

    def result(self, number: int, content: bytes) -> None:
        """Answer a call. Any thread."""
        self.send(frame(RESULT, number, (content,)))

    def flush(self) -> None:
        """Send what was collected, as much as the socket takes. Any thread; does not block."""
        self._outbox.flush()

    @property
    def since(self) -> float:
        """Monotonic seconds when it connected, or when it last took a part of what waits for it."""
        return self._outbox.since

    @property
    def is_blocked(self) -> bool:
        """Whether something could not be sent yet."""
        return self._outbox.is_blocked

    def close(self) -> None:
        """The end: nobody wants its requests any more, and its memory goes with it. The server's thread."""
        self.is_closed = True
        self._outbox.close()
        for pending in list(self._pending.values()):
            self._engine.cancel(pending)
        self._pending.clear()
        _close(self._descriptors)
        self._descriptors = []
        if self._arena is not None:
            self._arena.close()
        self.sock.close()


def _greeting(content: memoryview) -> tuple[int, int]:
    """The version, and where in the arena the responses' half begins. Raises ValueError."""
    fields = orjson.loads(content)
    if type(fields) is not list or len(fields) != 2 or not all(type(each) is int for each in fields):
        raise ValueError("it is no list of two numbers")
    return fields[0], fields[1]


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
