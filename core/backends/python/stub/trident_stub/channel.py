"""The stub's end of the socket, which sends frames and reads the server's, and the memory that the two share.

No thread is there only to read. A thread that waits for something, such as the main thread for the next batch, reads
the socket until it is there, and hands out what it reads on the way. So a batch wakes one thread in this process.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Callable

from .wire import RELEASE, RELEASED, TO_STUB, KnownLayouts, SentLayouts

if TYPE_CHECKING:
    from trident.core.interprocess.frames import BadFrame, FrameReader, frame
    from trident.core.interprocess.shared_memory import SharedMemory
else:
    from .frames import BadFrame, FrameReader, frame
    from .shared_memory import SharedMemory

# Takes the flags, the number and the content of a frame. Must be quick and must not send.
OnFrame = Callable[[int, int, memoryview], None]


class ServerGone(Exception):
    """The server closed the socket, or does not speak this protocol."""


class Channel:
    """Sends and reads frames. Any thread."""

    def __init__(self, sock: socket.socket, memory: int) -> None:
        """Speak over `sock`, which is in blocking mode. `memory` is the descriptor of the memory. Takes both."""
        self.memory = SharedMemory.attach(memory)
        self.layouts = KnownLayouts()
        self._sock = sock
        self._numbers = SentLayouts()
        self._sending = threading.Lock()
        # What was sent in `together`; None outside of it.
        self._collected: list[bytes] | None = None
        self._changed = threading.Condition()
        self._is_reading = False
        self._is_gone = False
        self._reason = "the server is gone"
        # Writable, as are the tensors in its frames: they belong to the model.
        self._frames = FrameReader(TO_STUB, "the server", bytearray)  # type: ignore[arg-type]
        self._on_frame: Mapping[int, OnFrame] = {}
        # What callers of `read_until` wait for, and the thread that waits in their place.
        self._wanted: list[Callable[[], bool]] = []
        self._reader: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._leave)

    def _leave(self) -> None:
        """Close the socket in a process that the model forked: two processes would mix their frames on it."""
        self._sock.close()
        self._is_gone = True
        self._reason = "the model forked this process, which has no server: only the model's own process has one"
        # Other threads, which are not in this process, may have held them.
        self._sending, self._changed = threading.Lock(), threading.Condition()

    def listen(self, on_frame: Mapping[int, OnFrame]) -> None:
        """Set the function to call for each type of frame, on the thread that reads it."""
        self._on_frame = on_frame

    # --- to the server

    def send(self, kind: int, number: int, content: bytes = b"", flags: int = 0) -> None:
        """Send a frame whose content is JSON, or empty. Blocks until the socket has taken it. Raises ServerGone."""
        with self._sending:
            self._send_all(frame(kind, number, (content,), flags=flags))

    def send_records(self, kind: int, number: int, count: int, write: Callable[[list[Any], SentLayouts], None]) -> None:
        """Send a frame of `count` records, which `write` appends. Blocks; raises ServerGone."""
        with self._sending:
            records: list[Any] = []
            write(records, self._numbers)
            content = frame(kind, number, [self._numbers.head(count), *records])
            self._send_all(self.memory.release(RELEASED) + content)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Send what any thread sends meanwhile as one piece, at the end. One thread at a time, which must not wait."""
        with self._sending:
            self._collected = []
        try:
            yield
        finally:
            with self._sending:
                collected, self._collected = self._collected, None
                if collected:
                    self._send_all(b"".join(collected))

    def _send_all(self, content: bytes) -> None:
        if self._is_gone:
            raise ServerGone(self._reason)
        if self._collected is not None:
            self._collected.append(content)
            return
        try:
            self._sock.sendall(content)
        except OSError as error:
            raise ServerGone(str(error)) from None

    # --- from the server

    def wait(self, is_over: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Read frames until `is_over`, or for `timeout_s` seconds. Returns whether it is over. Raises ServerGone."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        changed = self._changed
        with changed:
            while not is_over():
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return False
                if self._is_gone:
                    raise ServerGone(self._reason)
                if self._is_reading:
                    changed.wait(left)
                    continue
                self._is_reading = True
                changed.release()
                try:
                    self._read(left)
                finally:
                    changed.acquire()
                    self._is_reading = False
                    changed.notify_all()
        return True

    def read_until(self, is_over: Callable[[], bool]) -> None:
        """As `wait`, but return at once and let another thread wait: an event loop, for example, must not."""
        with self._changed:
            self._wanted.append(is_over)
            if self._reader is None:
                self._reader = threading.Thread(target=self._read_wanted, name="trident reader", daemon=True)
                self._reader.start()
            self._changed.notify_all()

    def _read_wanted(self) -> None:
        with suppress(ServerGone):
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._wanted)
                self.wait(self._has_all_that_is_wanted)

    def _has_all_that_is_wanted(self) -> bool:
        self._wanted = [is_over for is_over in self._wanted if not is_over()]
        return not self._wanted

    def take_in(self) -> None:
        """Read what has arrived, without waiting for more. Raises ServerGone."""
        with self._changed:
            if self._is_reading or self._is_gone:
                return
            self._is_reading = True
        try:
            self._read(0)
        finally:
            with self._changed:
                self._is_reading = False
                self._changed.notify_all()

    def wake(self) -> None:
        """Have each thread in `wait` ask again whether it is over, after something that no frame brought."""
        with self._changed:
            self._changed.notify_all()

    def _read(self, timeout_s: float | None) -> None:
        if timeout_s is not None and not select.select([self._sock], [], [], timeout_s)[0]:
            return
        try:
            for kind, flags, _, number, content in self._frames.receive(self._sock):
                if kind == RELEASE:
                    self.memory.released(content, number)
                else:
                    self._on_frame[kind](flags, number, content)
        except (OSError, BadFrame) as error:
            self._is_gone = True
            raise ServerGone(str(error)) from None
