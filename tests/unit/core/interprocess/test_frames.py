"""The stream between two processes: cut into frames by its reader, and collected by its sender."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from trident.core.interprocess.frames import HEADER, LARGEST, BadFrame, FrameReader, SendQueue, frame
from trident.core.remote.wire import CALL, RELEASE, REQUEST, RESPONSE, RESULT, TO_ENGINE, TO_FRONT_END

ALL = TO_ENGINE | TO_FRONT_END
STREAM = [(REQUEST, 1, b"x" * 40), (RELEASE, 2**64 - 1, b""), (CALL, 0, b"a"), (RESULT, 7, bytes(range(256)))]


def written() -> bytes:
    return b"".join(frame(kind, number, (content,)) for kind, number, content in STREAM)


def test_frames_are_found_wherever_the_stream_is_cut_and_stay_valid() -> None:
    stream = written()
    for at in range(len(stream) + 1):
        reader = FrameReader(ALL, "peer")
        assert len(reader.feed(stream[:at]) + reader.feed(stream[at:])) == len(STREAM), at
    reader = FrameReader(ALL, "peer")
    ((*_, first),) = reader.feed(frame(CALL, 1, (b"first",)))
    reader.feed(frame(CALL, 2, (b"other",)))
    assert bytes(first).rstrip() == b"first"
    assert FrameReader(ALL, "peer").feed(HEADER.pack(0, RESPONSE, 3, 2, 5))[0][:4] == (RESPONSE, 3, 2, 5)


@pytest.mark.parametrize(
    "header",
    [
        HEADER.pack(0, 0, 0, 0, 1),
        HEADER.pack(0, 15, 0, 0, 1),
        HEADER.pack(0, 255, 0, 0, 1),
        HEADER.pack(8, CALL, 0, 0, 1),
        HEADER.pack(LARGEST + 15, CALL, 0, 0, 1),
        b"GET / HTTP/1.1\r\n",
    ],
)
def test_malformed_frames_are_refused(header: bytes) -> None:
    with pytest.raises(BadFrame):
        FrameReader(ALL, "peer").feed(header)


# --- sending

LIMIT_S = 30.0


class Ends:
    """Both ends of a socket, with the queue at one of them; `changes` lists what `on_blocked` was told."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.theirs.settimeout(LIMIT_S)
        self.changes: list[bool] = []
        self.queue = SendQueue(self.ours, self.changes.append)

    def fill(self) -> int:
        """Make the socket take nothing more; the number of bytes in it."""
        size = 0
        with suppress(BlockingIOError):
            while True:
                size += self.ours.send(bytes(4096))
        return size

    def receive(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            received += self.theirs.recv(size - len(received))
        return received


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.ours.close()
    ends.theirs.close()


def test_unsent_bytes_are_sent_later_in_order(ends: Ends) -> None:
    filled = ends.fill()
    ends.queue.append(b"one")
    ends.queue.flush()
    assert ends.queue.is_blocked
    ends.queue.append(b"two")
    ends.queue.flush()
    assert ends.changes == [True]
    ends.receive(filled)
    ends.queue.flush()
    assert ends.receive(6) == b"onetwo"
    assert (ends.queue.is_blocked, ends.changes) == (False, [True, False])


def test_frames_of_many_threads_all_arrive(ends: Ends) -> None:
    def send() -> None:
        for _ in range(200):
            ends.queue.append(b"0123456789")
            ends.queue.flush()

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    received = ends.receive(8)
    while len(received) < 8000:
        received += ends.receive(min(1000, 8000 - len(received)))
        ends.queue.flush()
    for thread in threads:
        thread.join(LIMIT_S)
    assert received == b"0123456789" * 800
