from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.waiting import until
from trident.core.backends.python.process import ReadinessQuestion
from trident.core.errors import ModelNotReady


class Stub:
    """The other end: it answers when the test says so."""

    def __init__(self, limit_s: float = 30) -> None:
        self.ours, theirs = socket.socketpair()
        self._theirs = theirs
        self.question = ReadinessQuestion(theirs, "m_0", limit_s)

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


def test_a_ready_model(stub: Stub) -> None:
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(stub.question.ask)
        assert stub.ours.recv(1)
        stub.answer(True)
        asked.result(60)


@pytest.mark.parametrize(
    ("given", "shown"),
    [("", "Model 'm_0' is not ready (user-defined check failed)."), ("ValueError: why", "ValueError: why")],
)
def test_a_model_that_is_not_ready(stub: Stub, given: str, shown: str) -> None:
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(stub.question.ask)
        assert stub.ours.recv(1)
        stub.answer(False, given)
        with pytest.raises(ModelNotReady) as caught:
            asked.result(60)
    assert caught.value.message == shown


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
        until(lambda: stub.question._changed._waiters and len(stub.question._changed._waiters) == 7)  # type: ignore[attr-defined]
        stub.answer(True)
        for each in asked:
            each.result(60)
    assert stub.questions == 0


def test_a_process_that_is_gone(stub: Stub) -> None:
    stub.ours.close()
    with pytest.raises(ModelNotReady, match=r"Stub process 'm_0' is not healthy\."):
        stub.question.ask()
