from __future__ import annotations

import gc
import os
import socket
import threading
import weakref
from collections.abc import Iterator

import pytest

from tests.waiting import until
from trident.core.backends.python.watcher import Watched, Watcher

THREAD = "trident-python-models"


def is_running() -> bool:
    return any(thread.name == THREAD for thread in threading.enumerate())


class End:
    """A watched end of a socket, and how often it was readable and writable."""

    def __init__(self, watcher: Watcher) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.readable = threading.Semaphore(0)
        self.writable = threading.Semaphore(0)
        self.watched: Watched = watcher.watch(self.ours.fileno(), self.readable.release, self._write)

    def _write(self) -> None:
        self.writable.release()
        self.watched.want_to_write(False)

    def close(self) -> None:
        self.watched.end()
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture
def end(watcher: Watcher) -> Iterator[End]:
    made = End(watcher)
    yield made
    made.close()


def test_an_armed_file_is_called_once(end: End) -> None:
    end.theirs.send(b"x")
    assert not end.readable.acquire(timeout=0.05)
    end.watched.arm()
    assert end.readable.acquire(timeout=60)
    assert not end.readable.acquire(timeout=0.05)
    end.watched.arm()  # the byte is still there
    assert end.readable.acquire(timeout=60)


def test_a_disarmed_file_is_not_called(end: End) -> None:
    end.watched.arm()
    end.watched.disarm()
    end.theirs.send(b"x")
    assert not end.readable.acquire(timeout=0.05)


def test_a_file_that_wants_to_write_is_called(end: End) -> None:
    end.watched.want_to_write(True)
    assert end.writable.acquire(timeout=60)
    assert not end.writable.acquire(timeout=0.05)


def test_a_callback_that_fails_is_logged_and_the_others_go_on(
    watcher: Watcher, end: End, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("cannot be read")

    reading, writing = os.pipe()
    watched = watcher.watch(reading, fail)
    os.write(writing, b"x")
    watched.arm()
    until(lambda: "cannot be read" in caplog.text)
    end.theirs.send(b"x")
    end.watched.arm()
    assert end.readable.acquire(timeout=60)
    watched.end()
    os.close(reading)
    os.close(writing)


def test_the_thread_ends_with_the_last_file_and_starts_again_with_the_next(watcher: Watcher) -> None:
    for _ in range(2):
        first, second = End(watcher), End(watcher)
        assert is_running()
        first.close()
        second.theirs.send(b"x")
        second.watched.arm()
        assert second.readable.acquire(timeout=60)
        second.close()
        until(lambda: not is_running())


def test_what_was_watched_is_freed_without_the_garbage_collector(watcher: Watcher) -> None:
    end = End(watcher)
    end.theirs.send(b"x")
    end.watched.arm()
    assert end.readable.acquire(timeout=60)
    end.close()
    gone = weakref.ref(end)
    gc.disable()
    try:
        del end
        until(lambda: gone() is None)  # the thread may be in a call
    finally:
        gc.enable()
