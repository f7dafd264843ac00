"""The link with its own native thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.unit.core.remote.remote_parts import LIMIT_S
from tests.waiting import until
from trident.core.remote.connection import ThreadLink
from trident.core.waiting.waiting import ThreadWaiter


class Driven:
    """Driven by the link; notes its calls and their threads."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.is_connected = True
        self.wants_to_write = False
        self.calls: list[str] = []
        self.threads: set[str] = set()
        self.received = b""
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    @property
    def sock(self) -> socket.socket | None:
        return self.ours if self.is_connected else None

    def read(self) -> None:
        self._note("read")
        self.received += self.ours.recv(100)

    def flush(self) -> None:
        self._note("flush")
        assert self.may_go_on.wait(LIMIT_S)
        self.wants_to_write = False

    def look(self) -> None:
        self._note("look")

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self.threads.add(threading.current_thread().name)


@pytest.fixture
def driven() -> Iterator[Driven]:
    driven = Driven()
    yield driven
    driven.ours.close()
    driven.theirs.close()


@pytest.fixture
def link(driven: Driven) -> Iterator[ThreadLink]:
    link = ThreadLink()
    link.start(driven)
    yield link
    link.close()
    assert driven.threads == {"trident-engine-link"}


def test_arrived_bytes_are_read(link: ThreadLink, driven: Driven) -> None:
    driven.theirs.sendall(b"word")
    until(lambda: driven.received == b"word")


def test_the_link_looks_with_and_without_a_connection(link: ThreadLink, driven: Driven) -> None:
    until(lambda: driven.calls.count("look") > 3)
    driven.is_connected = False
    link.wake()
    seen = driven.calls.count("look")
    until(lambda: driven.calls.count("look") > seen + 3)
    assert "read" not in driven.calls


def test_many_wakes_are_one_flush(link: ThreadLink, driven: Driven) -> None:
    driven.may_go_on.clear()
    link.wake()
    until(lambda: driven.calls.count("flush") == 1)
    for _ in range(1000):
        link.wake()
    driven.may_go_on.set()
    until(lambda: driven.calls.count("flush") == 2)
    seen = driven.calls.count("look")
    until(lambda: driven.calls.count("look") > seen + 1)
    assert driven.calls.count("flush") == 2


def test_the_link_flushes_when_the_socket_takes_more(link: ThreadLink, driven: Driven) -> None:
    driven.wants_to_write = True
    link.wake()
    until(lambda: "flush" in driven.calls)
    assert not driven.wants_to_write


def test_nothing_is_called_after_the_end(driven: Driven) -> None:
    link = ThreadLink()
    link.start(driven)
    until(lambda: driven.calls)
    link.close()
    calls = len(driven.calls)
    for _ in range(3):
        link.wake()  # memory may be released after `close`
    driven.theirs.sendall(b"word")
    assert len(driven.calls) == calls
    assert driven.received == b""


def test_a_link_that_was_never_started_can_be_closed() -> None:
    ThreadLink().close()


def test_a_thread_waits_on_a_lock() -> None:
    link = ThreadLink()
    assert isinstance(link.waiter(), ThreadWaiter)
    link.close()
