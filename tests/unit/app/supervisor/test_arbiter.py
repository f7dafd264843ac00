"""The arbiter's verdict that a worker hangs, and the engine's process as its child."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.core.remote.remote_parts import LIMIT_S
from tests.waiting import until
from trident.app.process.environment import EXIT_FAILED
from trident.app.supervisor.arbiter import EngineChild, TridentArbiter
from trident.app.supervisor.start import STOP_ENGINE

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


def test_worker_survives_a_pause_of_the_whole_server(
    pass_seconds: Callable[[float], float],
) -> None:
    arbiter = Watched()
    for _ in range(2):
        look(arbiter, pass_seconds, 200, beats=True)
        pass_seconds(3600.0)
        look(arbiter, pass_seconds, 5, beats=False)
    look(arbiter, pass_seconds, 114, beats=False)
    assert arbiter.killed == []
    look(arbiter, pass_seconds, 5, beats=False)
    assert 7 in arbiter.killed


class Parent:
    """Starts children, and ends them after the test."""

    def __init__(self) -> None:
        self.cleaned = 0
        self.started: list[EngineChild] = []

    def child(self, run: Callable[[], int], close_inherited: Callable[[], None] = lambda: None) -> EngineChild:
        child = EngineChild(run, self._clean)
        self.started.append(child)
        child.start_if_due(close_inherited)
        return child

    def _clean(self) -> None:
        self.cleaned += 1


@pytest.fixture
def parent() -> Iterator[Parent]:
    parent = Parent()
    yield parent
    for child in parent.started:
        child.stop(0, graceful=False)


def wait_for_ever() -> int:
    while True:
        time.sleep(1)


def status_of(child: EngineChild) -> int:
    """The exit status of the process, after its end; the child is not told."""
    pid, status = os.waitpid(child.pid, 0)
    assert pid
    return os.waitstatus_to_exitcode(status)


def says_hello(folder: Path) -> Callable[[], int]:
    """A process that shows that it runs, and runs until it is stopped."""

    def run() -> int:
        (folder / "running").touch()
        return wait_for_ever()

    return run


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), SystemExit(3)])
def test_a_child_that_raises_ends_the_server(parent: Parent, error: BaseException) -> None:
    def run() -> int:
        raise error

    child = parent.child(run)
    assert status_of(child) == EXIT_FAILED
    assert not child.ended(EXIT_FAILED)


def test_stop_waits_for_the_child_to_end(parent: Parent, tmp_path: Path) -> None:
    def run() -> int:
        stopped: list[int] = []
        signal.signal(STOP_ENGINE, lambda number, frame: stopped.append(number))
        (tmp_path / "running").touch()
        while not stopped:
            time.sleep(0.01)
        return 3

    child = parent.child(run)
    until((tmp_path / "running").exists)
    assert child.stop(LIMIT_S) == 3
    assert (child.pid, parent.cleaned) == (0, 1)
    assert child.stop(LIMIT_S) == 0


def test_stop_without_grace_kills_the_child(parent: Parent, tmp_path: Path) -> None:
    child = parent.child(says_hello(tmp_path))
    until((tmp_path / "running").exists)
    assert child.stop(LIMIT_S, graceful=False) == -signal.SIGKILL


def test_a_stop_before_the_engine_exists_ends_the_child(parent: Parent, tmp_path: Path) -> None:
    """The status is 0, because nothing was in flight. The inherited handler of the main process is not called."""
    called = tmp_path / "called"
    before = signal.signal(STOP_ENGINE, lambda number, frame: called.touch())
    try:
        for _ in range(5):
            child = parent.child(wait_for_ever)
            assert child.stop(LIMIT_S) == 0
        assert not called.exists()
    finally:
        signal.signal(STOP_ENGINE, before)


def test_the_child_ignores_signals_that_are_sent_to_all_processes(parent: Parent, tmp_path: Path) -> None:
    child = parent.child(says_hello(tmp_path))
    until((tmp_path / "running").exists)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGWINCH, signal.SIGTTIN):
        os.kill(child.pid, number)
    assert os.waitpid(child.pid, os.WNOHANG) == (0, 0)
    assert child.stop(LIMIT_S) == 0


def test_a_failed_fork_is_logged_and_retried(parent: Parent, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def no_fork() -> int:
        raise OSError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fork", no_fork)
        child = parent.child(lambda: 0)
        assert child.pid == 0
    assert "cannot be started" in caplog.text
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) & {signal.SIGTERM, signal.SIGINT, STOP_ENGINE} == set()
    child.start_if_due(lambda: None)
    assert status_of(child) == 0
    child.ended(0)
