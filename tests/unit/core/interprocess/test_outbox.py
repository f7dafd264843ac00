from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from trident.core.interprocess.frames import Outbox

LIMIT_S = 30.0


class Ends:
    """Both ends of a socket, with the outbox at one of them; `changes` lists what `on_blocked` was told."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.theirs.settimeout(LIMIT_S)
        self.changes: list[bool] = []
        self.outbox = Outbox(self.ours, self.changes.append)

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


def test_flush_sends_all_frames_together(ends: Ends) -> None:
    for content in (b"one", b"two", b"three"):
        ends.outbox.append(content)
    ends.outbox.flush()
    assert ends.theirs.recv(100) == b"onetwothree"
    assert (len(ends.outbox), ends.outbox.is_blocked, ends.changes) == (0, False, [])


def test_what_the_socket_does_not_take_is_sent_later_and_in_order(ends: Ends) -> None:
    filled = ends.fill()
    since = ends.outbox.since
    ends.outbox.append(b"one")
    ends.outbox.flush()
    assert ends.outbox.is_blocked
    assert ends.outbox.since > since
    ends.outbox.append(b"two")
    ends.outbox.flush()
    assert ends.changes == [True]
    ends.receive(filled)
    ends.outbox.flush()
    assert ends.receive(6) == b"onetwo"
    assert (ends.outbox.is_blocked, ends.changes) == (False, [True, False])


def test_flush_does_nothing_at_the_end_of_the_connection(ends: Ends) -> None:
    ends.theirs.close()
    ends.outbox.append(b"one")
    ends.outbox.flush()
    assert (len(ends.outbox), ends.outbox.is_blocked, ends.changes) == (0, False, [])


def test_nothing_is_sent_after_close(ends: Ends) -> None:
    ends.fill()
    ends.outbox.append(b"one")
    ends.outbox.flush()
    ends.outbox.close()
    assert not ends.outbox.is_blocked
    ends.ours.close()
    ends.outbox.append(b"two")
    ends.outbox.flush()
    assert (len(ends.outbox), ends.changes) == (0, [True])


def test_frames_of_many_threads_all_arrive(ends: Ends) -> None:
    def send() -> None:
        for _ in range(200):
            ends.outbox.append(b"0123456789")
            ends.outbox.flush()

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    received = ends.receive(8)
    while len(received) < 8000:
        received += ends.receive(min(1000, 8000 - len(received)))
        ends.outbox.flush()
    for thread in threads:
        thread.join(LIMIT_S)
    assert received == b"0123456789" * 800
