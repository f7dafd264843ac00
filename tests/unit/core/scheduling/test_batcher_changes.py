"""Adding and removing instances of the dynamic batcher while it serves."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.unit.core.scheduling.scheduler_bench import (
    LIMIT_S,
    LONG_NS,
    Bench,
    MakeBench,
    Stub,
    batching,
    instance_threads,
)
from tests.waiting import until
from trident.core.backends.backend import BackendInstance
from trident.core.errors import ServerStopping
from trident.core.inference.response import InferenceResponse


def added(bench: Bench) -> Stub:
    stub = Stub(len(bench.backends))
    bench.backends.append(stub)
    bench.scheduler.add(stub)
    return stub


@contextmanager
def being_removed(bench: Bench, stub: Stub) -> Iterator[threading.Thread]:
    """Another thread removes `stub` and waits for it. At the end nothing may keep the instance any more."""
    remover = threading.Thread(target=bench.scheduler.remove, args=(stub,))
    thread = bench.scheduler._thread_of(stub)
    assert thread is not None
    remover.start()
    until(lambda: thread.retired)
    yield remover
    remover.join(LIMIT_S)
    assert not remover.is_alive()
    assert thread.join(0)


def test_an_added_instance_takes_queued_requests(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.scheduler.start()
    bench.backend.gate.clear()
    bench.submit("a")
    bench.begun()
    bench.submit("b")
    stub = added(bench)
    assert bench.wait(1) == ["b"]
    assert stub.batches == [["b"]]


def test_a_removed_instance_finishes_its_batch_and_takes_no_other(make_bench: MakeBench) -> None:
    bench = make_bench(instances=2)
    for backend in bench.backends:
        backend.gate.clear()
    bench.scheduler.start()
    bench.submit("a", "b")
    bench.begun(0)
    bench.begun(1)
    leaving, staying = bench.backends
    with being_removed(bench, leaving) as remover:
        bench.submit("c")
        assert remover.is_alive()
        assert (bench.scheduler.queued, bench.scheduler.in_flight) == (1, 2)
        leaving.gate.set()
    assert (bench.scheduler.queued, bench.scheduler.in_flight) == (1, 1)
    assert bench.wait(1) == leaving.batches[0]
    staying.gate.set()
    assert bench.scheduler.drain(LIMIT_S)
    assert len(leaving.batches) == 1
    assert staying.batches[1] == ["c"]


def test_idle_instances_are_removed_at_once(make_bench: MakeBench) -> None:
    bench = make_bench(instances=4)
    bench.scheduler.start()
    until(lambda: len(bench.scheduler._pool.idle) == 4)
    for backend in bench.backends[1:]:
        with being_removed(bench, backend):
            pass
    assert instance_threads() == ["trident-m_0_0"]
    bench.submit(*"abc")
    assert bench.wait(3) == ["a", "b", "c"]


def test_another_instance_holds_after_the_holder_is_removed(make_bench: MakeBench) -> None:
    bench = make_bench(batching(2, delay_ns=LONG_NS), instances=2)
    scheduler = bench.scheduler
    scheduler.start()
    bench.submit("a")
    until(lambda: scheduler._pool.holder is not None)
    assert scheduler._pool.holder is not None
    holding = scheduler._pool.holder.backend
    (other,) = [backend for backend in bench.backends if backend is not holding]
    scheduler.remove(holding)
    until(lambda: scheduler._pool.holder is scheduler._thread_of(other))
    assert scheduler._pool.waking == 0
    bench.submit("b")
    assert bench.wait(2) == ["a", "b"]
    assert other.batches == [["a", "b"]]


def test_a_request_that_woke_a_removed_instance_wakes_another(make_bench: MakeBench) -> None:
    bench = make_bench()
    scheduler = bench.scheduler
    scheduler.start()
    for turn in range(1, 101):
        until(lambda: len(scheduler._pool.idle) == 1)
        stub = added(bench)
        until(lambda: len(scheduler._pool.idle) == 2)  # the one that went to rest last is woken first
        bench.submit(str(turn))
        scheduler.remove(stub)
        bench.wait(turn)
    assert scheduler.drain(LIMIT_S)
    assert (scheduler._pool.waking, scheduler.queued, scheduler.in_flight) == (0, 0, 0)


def test_instances_can_change_before_the_start(make_bench: MakeBench) -> None:
    bench = make_bench()
    stub = added(bench)
    bench.scheduler.remove(bench.backend)
    bench.submit("a")
    assert bench.answers == []
    bench.scheduler.start()
    assert bench.wait(1) == ["a"]
    assert stub.batches == [["a"]]


def test_impossible_changes_are_refused(make_bench: MakeBench) -> None:
    bench = make_bench(instances=2)
    first, second = bench.backends
    scheduler = bench.scheduler
    scheduler.start()
    with pytest.raises(ValueError, match="'m_0_7' is not an instance"):
        scheduler.remove(Stub(7))
    with pytest.raises(ValueError, match="'m_0_0' is an instance already"):
        scheduler.add(first)
    first.gate.clear()
    second.gate.clear()
    bench.submit("a", "b")
    bench.begun(0)
    bench.begun(1)
    with being_removed(bench, first):
        for refused in bench.backends:
            with pytest.raises(ValueError, match="not an instance" if refused is first else "the last instance"):
                scheduler.remove(refused)
        with pytest.raises(ValueError, match="an instance already"):
            scheduler.add(first)
        first.gate.set()
    second.gate.set()
    bench.wait(2)
    scheduler.add(first)
    assert scheduler.close(LIMIT_S)
    with pytest.raises(ServerStopping, match="scheduler for model has ended"):
        scheduler.add(Stub(8))


def test_an_instance_cannot_be_removed_on_its_own_thread(make_bench: MakeBench) -> None:
    bench = make_bench(instances=2)
    bench.scheduler.start()
    caught: list[Exception] = []

    def remove_both(response: InferenceResponse) -> None:
        for backend in bench.backends:
            try:
                bench.scheduler.remove(backend)
            except (RuntimeError, ValueError) as exc:
                caught.append(exc)

    request = bench.request("a")
    request.on_response = remove_both
    bench.scheduler.submit(request)
    assert bench.scheduler.drain(LIMIT_S)
    assert [str(error) for error in caught] == ["an instance cannot be removed on its own thread"]
    bench.submit("b")
    assert bench.wait(1) == ["b"]


def test_drain_and_close_wait_for_a_removed_instance(make_bench: MakeBench) -> None:
    bench = make_bench(instances=2)
    for backend in bench.backends:
        backend.gate.clear()
    bench.scheduler.start()
    bench.submit("a", "b")
    bench.begun(0)
    bench.begun(1)
    leaving, staying = bench.backends
    with being_removed(bench, leaving):
        staying.gate.set()
        assert not bench.scheduler.drain(0.01)
        assert not bench.scheduler.close(0.01)
        leaving.gate.set()
        assert bench.scheduler.drain(LIMIT_S)
        assert bench.scheduler.close(LIMIT_S)
    assert sorted(bench.wait(2)) == ["a", "b"]


class Caller:
    """Submits bursts until `done` is set, and waits for the responses of each burst before the next."""

    def __init__(self, bench: Bench, number: int, done: threading.Event) -> None:
        self.answered: list[str] = []
        self.submitted: list[str] = []
        self.failures: list[Exception] = []
        self.thread = threading.Thread(target=self._run)
        self._bench = bench
        self._number = number
        self._done = done
        self._answers = threading.Semaphore(0)

    def _run(self) -> None:
        source = random.Random(self._number)
        while not self._done.is_set():
            burst = source.randint(1, 5)
            for _ in range(burst):
                id = f"{self._number}-{len(self.submitted)}"
                self.submitted.append(id)
                request = self._bench.request(id)
                request.on_response = self._on_response
                self._bench.scheduler.submit(request)
            for _ in range(burst):
                if not self._answers.acquire(timeout=LIMIT_S):
                    return

    def _on_response(self, response: InferenceResponse) -> None:
        self.answered.append(response.id)
        if response.error is not None:
            self.failures.append(response.error)
        self._answers.release()


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("delay_ns", [0, 300_000])
def test_instances_are_added_and_removed_under_load(make_bench: MakeBench, delay_ns: int, ordered: bool) -> None:
    bench = make_bench(batching(4, 8, delay_ns=delay_ns, ordered=ordered), instances=2)
    bench.scheduler.start()
    done = threading.Event()
    callers = [Caller(bench, number, done) for number in range(4)]
    for caller in callers:
        caller.thread.start()
    source = random.Random(delay_ns + ordered)
    serving: list[BackendInstance] = list(bench.backends)
    try:
        for number in range(200):
            serving.append(Stub(2 + number))
            bench.scheduler.add(serving[-1])
            if len(serving) > source.randint(1, 4):
                bench.scheduler.remove(serving.pop(source.randrange(len(serving))))
        while len(serving) > 1:
            bench.scheduler.remove(serving.pop(0))
    finally:
        done.set()
        for caller in callers:
            caller.thread.join()
    assert bench.scheduler.drain(LIMIT_S)
    for caller in callers:
        assert sorted(caller.answered) == sorted(caller.submitted)
        assert not ordered or caller.answered == caller.submitted
        assert caller.failures == []
    assert (bench.scheduler.queued, bench.scheduler.in_flight, bench.scheduler._pool.waking) == (0, 0, 0)
    assert instance_threads() == [f"trident-{serving[0].placement.name}"]
