"""The arbiter's verdict that a worker hangs, on the test's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from trident.app.supervisor.arbiter import TridentArbiter

TIMEOUT_S = 120.0


class Watched(TridentArbiter):
    """An arbiter with one worker, whose heartbeats the test sets. It records kills and kills nothing."""

    def __init__(self) -> None:
        self.beat = 0.0
        self.killed: list[int] = []
        self.timeout = TIMEOUT_S
        self.log = SimpleNamespace(critical=lambda *_: None)
        tmp = SimpleNamespace(last_update=lambda: self.beat)
        self.WORKERS = {7: SimpleNamespace(tmp=tmp, aborted=False)}

    def kill_worker(self, pid: int, sig: int) -> None:
        self.killed.append(pid)


@pytest.fixture
def pass_seconds(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def seconds(number: float) -> float:
        now[0] += number
        return now[0]

    return seconds


def look(arbiter: Watched, pass_seconds: Callable[[float], float], seconds: int, *, beats: bool) -> None:
    for _ in range(seconds):
        now = pass_seconds(1.0)
        if beats:
            arbiter.beat = now
        arbiter.murder_workers()


def test_a_worker_that_hangs_is_killed(pass_seconds: Callable[[float], float]) -> None:
    arbiter = Watched()
    look(arbiter, pass_seconds, 200, beats=True)
    look(arbiter, pass_seconds, 119, beats=False)
    assert arbiter.killed == []
    look(arbiter, pass_seconds, 3, beats=False)
    assert 7 in arbiter.killed


def test_a_worker_that_was_paused_with_the_server_is_kept(pass_seconds: Callable[[float], float]) -> None:
    arbiter = Watched()
    look(arbiter, pass_seconds, 200, beats=True)
    pass_seconds(3600.0)
    look(arbiter, pass_seconds, 5, beats=False)
    look(arbiter, pass_seconds, 300, beats=True)
    assert arbiter.killed == []


def test_a_worker_that_hangs_after_a_pause_is_killed(pass_seconds: Callable[[float], float]) -> None:
    arbiter = Watched()
    look(arbiter, pass_seconds, 200, beats=True)
    pass_seconds(3600.0)
    look(arbiter, pass_seconds, 119, beats=False)
    assert arbiter.killed == []
    look(arbiter, pass_seconds, 5, beats=False)
    assert 7 in arbiter.killed
