from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.unit.core.lifecycle.lifecycle_bench import LIMIT_S, threads
from tests.waiting import until
from trident.core.lifecycle.lifecycle import LoadThreads


class Work:
    """Work that does not end before `gate` is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self.count = 0

    def __call__(self) -> None:
        self.begun.release()
        assert self.gate.wait(LIMIT_S)
        self.count += 1


@pytest.fixture
def work() -> Iterator[Work]:
    work = Work()
    yield work
    work.gate.set()
    until(lambda: threads() == [])


def test_no_more_than_the_limit_run_at_once(work: Work) -> None:
    load_threads = LoadThreads(2)
    done: list[int] = []
    for _ in range(2):
        load_threads.submit(work)
    for number in range(10):
        load_threads.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    for _ in range(2):
        assert work.begun.acquire(timeout=LIMIT_S)
    assert len(threads()) == 2
    assert done == []
    assert not load_threads.wait_idle(0)
    work.gate.set()
    assert load_threads.wait_idle(LIMIT_S)
    assert sorted(done) == list(range(10))


def test_a_limit_of_zero_means_one_thread() -> None:
    load_threads = LoadThreads(0)
    done: list[int] = []
    for number in range(100):
        load_threads.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    assert load_threads.wait_idle(LIMIT_S)
    assert done == list(range(100))
    until(lambda: threads() == [])


def test_wait_idle_returns_without_work() -> None:
    assert LoadThreads(1).wait_idle(0)


def test_after_close_nothing_begins_and_what_runs_ends(work: Work) -> None:
    load_threads = LoadThreads(1)
    for _ in range(3):
        load_threads.submit(work)
    assert work.begun.acquire(timeout=LIMIT_S)
    load_threads.close()
    load_threads.submit(work)
    work.gate.set()
    assert load_threads.wait_idle(LIMIT_S)
    assert work.count == 1
    assert not work.begun.acquire(blocking=False)


def test_running_work_does_not_keep_the_process_alive(work: Work) -> None:
    LoadThreads(1).submit(work)
    assert work.begun.acquire(timeout=LIMIT_S)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "trident-load"]
    assert thread.daemon
