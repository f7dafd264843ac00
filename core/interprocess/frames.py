"""Frames on a socket between two processes of a server: a fixed header, then the content.

    size     u32   bytes of the content, a multiple of 16
    type     u8    of the frame
    flags    u8    of that type of frame
    shared   u16   number of tensors in shared memory
    number   u64   what the frame is about, such as a request

Frames begin at a multiple of 16 bytes, and so do the tensors in them: the first tensor, usually the only one, has the
alignment that numpy and ONNX Runtime want.

Front ends and the engine speak in such frames, and so do the engine and the process of a Python model. That process
loads this module into the model's interpreter: it needs Python 3.9 and nothing of the project.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trident.core.inference.tensors import Buffer

HEADER = struct.Struct("<IBBHQ")
ALIGNMENT = 16
# The padding after content of `size` bytes, at index `size & 15`.
PADDING = [bytes(-size % ALIGNMENT) for size in range(ALIGNMENT)]
_BLANKS = [b" " * (-size % ALIGNMENT) for size in range(ALIGNMENT)]
# More than any option allows for a request. Only received content takes memory.
LARGEST = 0xFFFF_FFF0
# From this size on a tensor travels in shared memory: the socket copies into the kernel and out of it.
LARGE = 32768
_RECEIVE_SIZE = 1 << 18
_OFFSET = struct.Struct("<Q")

# Type, flags, tensors in shared memory, number, and content: a view of the received bytes, which it keeps in memory.
# A plain tuple, because a named one costs a twentieth of the time of a small request.
Frame = tuple[int, int, int, int, memoryview]


class BadFrame(ValueError):
    """The other end broke the protocol: the connection must end."""


def frame(kind: int, number: int, content: Sequence[Buffer] = (), *, flags: int = 0, shared: int = 0) -> bytes:
    """Make a whole frame, padded with blanks, which JSON parsers ignore."""
    size = sum(map(len, content))
    blanks = _BLANKS[size & 15]
    return b"".join((HEADER.pack(size + len(blanks), kind, flags, shared, number), *content, blanks))


def release_frame(kind: int, offsets: Sequence[int]) -> bytes:
    """Make a frame that releases these offsets in shared memory. Its number is their count."""
    return frame(kind, len(offsets), [_OFFSET.pack(offset) for offset in offsets])


def released_offsets(content: memoryview, count: int) -> list[int]:
    """Return the offsets in a release frame with that number. Raises BadFrame."""
    if count * _OFFSET.size > len(content):
        raise BadFrame("a release that is shorter than it says")
    return [offset for (offset,) in _OFFSET.iter_unpack(content[: count * _OFFSET.size])]


class FrameReader:
    """Reads frames from a socket. One thread at a time."""

    def __init__(
        self,
        kinds: frozenset[int],
        peer: str,
        keep: Callable[[memoryview], bytes] = bytes,
        most_shared: int = 0xFFFF,
    ) -> None:
        """`kinds` are the types that the other end may send, and `peer` is its name in errors.

        `keep` copies what was received: `bytearray` makes the contents of frames writable. `most_shared` is the largest
        value of a frame's field `shared`.
        """
        self._kinds = kinds
        self._most_shared = most_shared
        self._peer = peer
        self._keep = keep
        self._received = memoryview(bytearray(_RECEIVE_SIZE))
        self._parts: list[bytes] = []
        self._have = 0
        self._wanted = HEADER.size

    def receive(self, sock: socket.socket, flags: int = 0) -> list[Frame]:
        """Return the frames that the bytes in the socket complete. Raises OSError, also at its end, and BadFrame."""
        size = sock.recv_into(self._received, 0, flags)
        if not size:
            raise ConnectionResetError(f"{self._peer} closed its socket")
        return self.feed(self._keep(self._received[:size]))

    def feed(self, chunk: bytes) -> list[Frame]:
        """Return the frames that `chunk` completes. Raises BadFrame."""
        if self._parts:
            self._parts.append(chunk)
            self._have += len(chunk)
            if self._have < self._wanted:
                return []
            chunk = self._keep(memoryview(b"")).join(self._parts)
            self._parts = []
        frames: list[Frame] = []
        view, at, end = memoryview(chunk), 0, len(chunk)
        self._wanted = HEADER.size
        unpack, kinds, most_shared = HEADER.unpack_from, self._kinds, self._most_shared
        while end - at >= 16:
            size, kind, flags, shared, number = unpack(chunk, at)
            if kind not in kinds or size & 15 or size > LARGEST or shared > most_shared:
                raise BadFrame(f"a frame of type {kind} and {size} bytes with {shared} tensors in shared memory")
            start = at + 16
            if end - start < size:
                self._wanted = HEADER.size + size
                break
            at = start + size
            frames.append((kind, flags, shared, number, view[start:at]))
        if at < end:
            self._parts = [chunk[at:] if at else chunk]
            self._have = end - at
        return frames


def _ignore(is_blocked: bool) -> None: ...


class SendQueue:
    """Any thread may `append` frames, and any thread may call `flush`, which sends them together.

    `on_blocked` is called, under the queue's lock, with True when the socket takes no more for now, and with False when
    it has taken everything again; in between the owner calls `flush` whenever the socket is writable.
    """

    def __init__(self, sock: socket.socket, on_blocked: Callable[[bool], None] = _ignore) -> None:
        self._frames: deque[bytes] = deque()
        self.append: Callable[[bytes], None] = self._frames.append
        """Adds a frame, to be sent with the next `flush`."""
        self._sock = sock
        self._on_blocked = on_blocked
        self._lock = threading.Lock()
        self._unsent: memoryview | None = None
        self._is_closed = False

    def __len__(self) -> int:
        """Number of frames that no `flush` has taken yet."""
        return len(self._frames)

    @property
    def is_blocked(self) -> bool:
        """True while the socket has not taken all that was sent."""
        return self._unsent is not None

    def flush(self) -> None:
        """Send as much as the socket takes. Does not block.

        Does nothing if the connection has ended, and ends one that fails: the owner learns that when it reads.
        """
        with self._lock:
            if self._is_closed:
                self._frames.clear()
                return
            was_blocked = self._unsent is not None
            # The rest is sent first and alone: joined with new frames, a large rest would be copied again and again.
            if self._unsent is None or self._send(self._unsent):
                parts: list[bytes] = []
                try:
                    while True:
                        parts.append(self._frames.popleft())
                except IndexError:
                    pass
                if parts:
                    self._send(parts[0] if len(parts) == 1 else b"".join(parts))
            if was_blocked is not (self._unsent is not None):
                self._on_blocked(not was_blocked)

    def close(self) -> None:
        """Stop sending. After this returns the socket may be closed."""
        with self._lock:
            self._is_closed = True
            self._unsent = None

    def _send(self, whole: bytes | memoryview) -> bool:
        """Send, and return whether all of it was sent. The caller has the lock."""
        try:
            sent = self._sock.send(whole, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError:
            # The next bytes would be out of step.
            self._is_closed = True
            self._frames.clear()
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            sent = len(whole)
        if sent == len(whole):
            self._unsent = None
            return True
        self._unsent = memoryview(whole)[sent:]
        return False


def wait_readable(descriptor: int, timeout_s: float | None) -> bool:
    """Wait until there is something to read or the other end is gone. False after `timeout_s` seconds without it."""
    return _wait(descriptor, select.POLLIN, timeout_s)


def wait_writable(descriptor: int, timeout_s: float | None) -> bool:
    """Wait until the descriptor is writable or the other end is gone. False after `timeout_s` seconds without it."""
    return _wait(descriptor, select.POLLOUT, timeout_s)


def _wait(descriptor: int, events: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))
