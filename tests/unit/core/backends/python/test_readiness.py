from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.backends.python.readiness import ReadinessQuestion
from core.errors import ModelNotReady
from tests.waiting import until


class Stub:
    """The other end: it answers when the test says so."""

    def __init__(self, limit_s: float = 30) -> None:
        self.ours, theirs = socket.socketpair()
        self._theirs = theirs
        self.question = ReadinessQuestion(theirs, "m_0", limit_s)

    def receive(self) -> int:
        return self.ours.recv(1)[0]

    def answer(self, number: int, is_ready: bool, reason: str = "") -> None:
        self.ours.sendall(json.dumps([number, is_ready, reason]).encode() + b"\n")

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
        stub.answer(stub.receive(), True)
        asked.result(60)


@pytest.mark.parametrize(
    ("given", "shown"),
    [("", "Model 'm_0' is not ready (user-defined check failed)."), ("ValueError: why", "ValueError: why")],
)
def test_a_model_that_is_not_ready(stub: Stub, given: str, shown: str) -> None:
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(stub.question.ask)
        stub.answer(stub.receive(), False, given)
        with pytest.raises(ModelNotReady) as caught:
            asked.result(60)
    assert caught.value.message == shown


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next() -> None:
    stub = Stub(limit_s=0.05)
    with pytest.raises(ModelNotReady, match=r"Timed out waiting for user-defined is_ready\(\) response"):
        stub.question.ask()
    stub.answer(stub.receive(), False, "late")
    stub.answer(2, True)
    stub.question.ask()
    stub.close()


def test_those_who_ask_at_the_same_time_share_an_answer(stub: Stub) -> None:
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(stub.question.ask) for _ in range(8)]
        number = stub.receive()
        until(lambda: stub.question._changed._waiters and len(stub.question._changed._waiters) == 7)  # type: ignore[attr-defined]
        stub.answer(number, True)
        for each in asked:
            each.result(60)
    stub.ours.setblocking(False)
    with pytest.raises(BlockingIOError):
        stub.receive()


def test_a_process_that_is_gone(stub: Stub) -> None:
    stub.ours.close()
    with pytest.raises(ModelNotReady, match=r"Stub process 'm_0' is not healthy\."):
        stub.question.ask()
