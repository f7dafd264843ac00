"""The thread that watches the files of processes, and the question whether a model is ready."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.waiting import until
from trident.core.backends.python.channel import FileWatcher, WatchedFile
from trident.core.backends.python.process import ReadinessCheck
from trident.core.errors import ModelNotReady

THREAD = "trident-python-models"


def is_running() -> bool:
    return any(thread.name == THREAD for thread in threading.enumerate())


class End:
    """A watched end of a socket, and how often it was readable and writable."""

    def __init__(self, watcher: FileWatcher) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.readable = threading.Semaphore(0)
        self.writable = threading.Semaphore(0)
        self.watched: WatchedFile = watcher.watch(self.ours.fileno(), self.readable.release, self._write)

    def _write(self) -> None:
        self.writable.release()
        self.watched.want_to_write(False)

    def close(self) -> None:
        self.watched.end()
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def watcher() -> FileWatcher:
    return FileWatcher()


@pytest.fixture
def end(watcher: FileWatcher) -> Iterator[End]:
    made = End(watcher)
    yield made
    made.close()


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
    watcher: FileWatcher, end: End, caplog: pytest.LogCaptureFixture
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


def test_the_thread_ends_with_the_last_file_and_starts_again_with_the_next(watcher: FileWatcher) -> None:
    for _ in range(2):
        first, second = End(watcher), End(watcher)
        assert is_running()
        first.close()
        second.theirs.send(b"x")
        second.watched.arm()
        assert second.readable.acquire(timeout=60)
        second.close()
        until(lambda: not is_running())


class Stub:
    """The other end: it answers when the test says so."""

    def __init__(self, limit_s: float = 30) -> None:
        self.ours, theirs = socket.socketpair()
        self._theirs = theirs
        self.question = ReadinessCheck(theirs, "m_0", limit_s)

    def answer(self, is_ready: bool, reason: str = "") -> None:
        self.ours.sendall(json.dumps([is_ready, reason]).encode() + b"\n")

    @property
    def questions(self) -> int:
        """How many have come since the last look."""
        self.ours.setblocking(False)
        try:
            return len(self.ours.recv(100))
        except BlockingIOError:
            return 0
        finally:
            self.ours.setblocking(True)

    def close(self) -> None:
        self.ours.close()
        self._theirs.close()


@pytest.fixture
def stub() -> Iterator[Stub]:
    made = Stub()
    yield made
    made.close()


def test_who_asks_while_the_model_thinks_does_not_ask_again() -> None:
    stub = Stub(limit_s=0.05)
    for _ in range(3):
        with pytest.raises(ModelNotReady, match=r"Timed out waiting for user-defined is_ready\(\) response"):
            stub.question.ask()
    assert stub.questions == 1
    stub.close()


def test_an_answer_that_came_when_nobody_waited_says_nothing_about_now() -> None:
    stub = Stub(limit_s=0.05)
    with pytest.raises(ModelNotReady, match="Timed out"):
        stub.question.ask()
    stub.answer(True)
    with pytest.raises(ModelNotReady, match="Timed out"):
        stub.question.ask()
    assert stub.questions == 2
    stub.close()


def test_those_who_ask_at_the_same_time_share_an_answer(stub: Stub) -> None:
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(stub.question.ask) for _ in range(8)]
        assert stub.ours.recv(1)
        shared = stub.question._shared
        until(lambda: len(shared._condition._waiters) == 7)  # type: ignore[union-attr]
        stub.answer(True)
        for each in asked:
            each.result(60)
    assert stub.questions == 0
