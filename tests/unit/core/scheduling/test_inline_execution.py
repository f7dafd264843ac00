"""Short executions run on the submitting thread, on the instance of an idle thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from tests.project import pure_python_only
from tests.threads import server_threads
from tests.unit.core.scheduling.scheduler_bench import (
    LIMIT_S,
    LONG_NS,
    Bench,
    MakeBench,
    Stub,
    noted_threads,
    resting,
    resting_bench,
)
from tests.waiting import until
from trident.core.backends.backend import Execution
from trident.core.config.spec import ModelSpec
from trident.core.inference.pending_request import Deferred, LoneRequest, PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.scheduling.inline_execution import LONGEST_NS, ShortExecutions


@pytest.fixture
def now() -> list[int]:
    """The time of the clock, in nanoseconds. It stands still, so that executions are short on a busy machine, too."""
    return [1]


@pytest.fixture
def bench(make_bench: MakeBench, now: list[int]) -> Bench:
    return resting_bench(make_bench, now)


class Caller:
    """Submits requests; `run` makes the calls that the scheduler deferred."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.deferred = Deferred()

    def submit(self, *ids: str) -> None:
        for id in ids:
            request = self._bench.request(id)
            request.defer = self.deferred.add
            self._bench.scheduler.submit(request)

    def run(self) -> None:
        self.deferred.run()

    @property
    def is_asked(self) -> bool:
        return bool(self.deferred._calls)


class AlwaysShort(ShortExecutions):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.lasting = True

    def note(self, batch: Sequence[PendingRequest], duration_ns: int, inline: bool) -> None:
        """However long it took."""

    def expected(self, batch: Sequence[PendingRequest]) -> bool:
        return True


def test_the_submitting_thread_executes_all_its_requests_as_one_batch(bench: Bench) -> None:
    threads = noted_threads(bench)
    caller = Caller(bench)
    caller.submit("a", "b", "c")
    assert bench.backend.batches == []
    caller.run()
    assert bench.backend.batches == [["a", "b", "c"]]
    assert threads == [threading.current_thread().name]
    assert [answer.id for answer in bench.answers] == ["a", "b", "c"]
    assert (bench.scheduler.queued, bench.scheduler.in_flight) == (0, 0)


@pure_python_only
def test_instance_thread_executes_the_rest_of_the_queue(bench: Bench, now: list[int]) -> None:
    threads = noted_threads(bench)
    caller = Caller(bench)
    ids = [str(number) for number in range(24)]
    caller.submit(*ids)
    execute = bench.backend.execute

    def taking_long(requests: Sequence[InferenceRequest], batch_sizes: Sequence[int]) -> Execution:
        now[0] += LONGEST_NS // 2 + 1
        return execute(requests, batch_sizes)

    bench.backend.execute = taking_long  # type: ignore[method-assign]
    bench.scheduler._short = AlwaysShort(bench.scheduler._spec)
    caller.run()
    assert bench.wait(24) == ids
    assert threads == [threading.current_thread().name] * 2 + ["trident-m_0_0"]


def alone(bench: Bench, id: str, deferred: Deferred) -> LoneRequest:
    made = bench.request(id)
    return LoneRequest(made.request, made.on_response, defer=deferred.add)


def test_lone_request_runs_in_submit_followed_by_new_arrivals(bench: Bench) -> None:
    threads, execute = noted_threads(bench), bench.backend.execute

    def meanwhile(requests: Sequence[InferenceRequest], batch_sizes: Sequence[int]) -> Execution:
        if requests[0].id == "a":
            assert (bench.scheduler.queued, bench.scheduler.in_flight) == (0, 1)
            bench.submit("b")
        return execute(requests, batch_sizes)

    bench.backend.execute = meanwhile  # type: ignore[method-assign]
    deferred = Deferred()
    counted = bench.statistics.snapshot(0)
    bench.scheduler.submit(alone(bench, "a", deferred))
    assert bench.backend.batches == [["a"], ["b"]]
    assert threads == [threading.current_thread().name] * 2
    assert [answer.id for answer in bench.answers] == ["a", "b"]
    assert (bench.scheduler.queued, bench.scheduler.in_flight, deferred._calls) == (0, 0, {})
    assert bench.statistics.snapshot(0).execution_count == counted.execution_count + 2


@pytest.mark.parametrize("why", ["others are queued", "it has a preferred size", "it was cancelled", "a batch waits"])
def test_lone_request_is_queued_if_inline_execution_is_not_allowed(
    make_bench: MakeBench, now: list[int], why: str
) -> None:
    bench = resting_bench(make_bench, now, delay_ns=LONG_NS if why == "a batch waits" else 0)
    deferred = Deferred()
    pending = alone(bench, "a", deferred)
    if why == "others are queued":
        Caller(bench).submit("b")
    elif why == "it has a preferred size":
        pending.batch_size = 8
    elif why == "it was cancelled":
        pending.cancel()
    bench.scheduler.submit(pending)
    assert bench.backend.batches == []
    assert bench.scheduler.queued == (2 if why == "others are queued" else 1)


def test_an_instance_that_may_not_run_inline_executes_on_its_own_thread(bench: Bench) -> None:
    bench.backend.may_run_inline = False
    caller = Caller(bench)
    caller.submit("a")
    assert not caller.is_asked
    assert bench.wait(1) == ["a"]


@pytest.mark.parametrize("end", ["close", "remove"])
def test_an_instance_is_removed_while_another_thread_executes_on_it(bench: Bench, end: str) -> None:
    scheduler = bench.scheduler
    if end == "remove":
        successor = Stub(1)
        bench.backends.append(successor)
        scheduler.add(successor)
        resting(bench, 2)
        scheduler._pool.idle.reverse()  # the last one is borrowed
    bench.backend.begun = threading.Semaphore(0)
    bench.backend.gate.clear()
    caller = Caller(bench)
    caller.submit("a")
    helping = threading.Thread(target=caller.run)
    helping.start()
    bench.begun()
    ending = threading.Thread(target=scheduler.close if end == "close" else lambda: scheduler.remove(bench.backend)())
    ending.start()
    until(lambda: scheduler._instances[0].is_removed or scheduler._pool.closed)
    assert not bench.answers
    bench.backend.gate.set()
    for thread in (helping, ending):
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert bench.wait(1) == ["a"]
    assert bench.error("a") is None
    assert server_threads() == ([] if end == "close" else ["trident-m_0_1"])
