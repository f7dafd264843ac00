"""The dynamic batcher on instances whose executions hold resources."""

from __future__ import annotations

import threading

import pytest

from tests.unit.core.scheduling.rate_limiter.placed import limit
from tests.unit.core.scheduling.scheduler_bench import LIMIT_S, Bench, MakeBench, batching, resting
from tests.waiting import until
from trident.core.inference.pending_request import Deferred
from trident.core.scheduling.batcher import DynamicBatcher
from trident.core.scheduling.instance_pool import WAITING
from trident.core.scheduling.rate_limiter import RateLimiter

ONE = limit(r=1)


@pytest.fixture
def limiter() -> RateLimiter:
    return RateLimiter()


def waiting(bench: Bench, count: int = 1) -> None:
    until(lambda: sum(thread.state is WAITING for thread in bench.scheduler._threads) == count)


def holding(make_bench: MakeBench, limiter: RateLimiter) -> Bench:
    """A bench that executes, and so holds the resource until its gate is set."""
    bench = make_bench(limiter=limiter, limits=[ONE])
    bench.scheduler.start()
    bench.backend.gate.clear()
    bench.submit("h")
    bench.begun()
    return bench


def test_a_batch_that_waits_for_its_turn_grows(make_bench: MakeBench, limiter: RateLimiter) -> None:
    holder = holding(make_bench, limiter)
    bench = make_bench(batching(8), limiter=limiter, limits=[ONE])
    bench.scheduler.start()
    bench.submit("a")
    waiting(bench)
    bench.submit("b", "c")
    assert (bench.scheduler.queued, bench.backend.batches) == (3, [])
    holder.backend.gate.set()
    assert bench.wait(3) == ["a", "b", "c"]
    assert bench.backend.batches == [["a", "b", "c"]]


def test_requests_that_are_cancelled_meanwhile_leave_unrun(make_bench: MakeBench, limiter: RateLimiter) -> None:
    holder = holding(make_bench, limiter)
    bench = make_bench(limiter=limiter, limits=[ONE])
    bench.scheduler.start()
    (pending,) = bench.submit("a")
    waiting(bench)
    pending.cancel()
    holder.backend.gate.set()
    bench.wait(1)
    assert bench.error("a") is not None
    assert bench.backend.batches == []
    assert holder.scheduler.drain(LIMIT_S)
    holder.submit("again")
    assert holder.wait(2) == ["h", "again"]


def test_an_instance_that_needs_nothing_takes_what_another_waits_for(
    make_bench: MakeBench, limiter: RateLimiter
) -> None:
    holder = holding(make_bench, limiter)
    bench = make_bench(instances=2, limiter=limiter, limits=[ONE])
    bench.scheduler.start()
    bench.submit(*"abc")
    assert sorted(bench.wait(3)) == ["a", "b", "c"]
    assert bench.backend.batches == []
    holder.backend.gate.set()


@pytest.mark.parametrize("ends", [DynamicBatcher.close, lambda scheduler: scheduler.close(0)])
def test_a_scheduler_that_waits_for_its_turn_can_close(
    make_bench: MakeBench, limiter: RateLimiter, ends: object
) -> None:
    """Whoever holds the resource may do so for long."""
    holder = holding(make_bench, limiter)
    bench = make_bench(limiter=limiter, limits=[ONE])
    bench.scheduler.start()
    bench.submit("a")
    waiting(bench)
    assert callable(ends)
    closing = threading.Thread(target=ends, args=(bench.scheduler,))
    closing.start()
    closing.join(LIMIT_S)
    assert not closing.is_alive()
    assert bench.error("a") is not None
    assert limiter.metrics()[0].waiting == 0
    holder.backend.gate.set()


def test_an_instance_that_waits_for_its_turn_can_be_removed(make_bench: MakeBench, limiter: RateLimiter) -> None:
    holder = holding(make_bench, limiter)
    bench = make_bench(instances=2, limiter=limiter, limits=[ONE, limit(r=1, s=1)])
    bench.scheduler.start()
    bench.submit("a")
    waiting(bench, 2)
    bench.scheduler.remove(bench.backends[0])
    waiting(bench)
    holder.backend.gate.set()
    assert bench.wait(1) == ["a"]
    assert bench.backends[1].batches == [["a"]]


def test_an_execution_that_fails_gives_back_what_it_held(make_bench: MakeBench, limiter: RateLimiter) -> None:
    bench = make_bench(limiter=limiter, limits=[ONE])
    bench.scheduler.start()
    bench.submit("x1")
    bench.wait(1)
    until(lambda: limiter.metrics()[0].held == 0)


def short(make_bench: MakeBench, limiter: RateLimiter) -> Bench:
    """A bench whose last executions were short; on a busy machine some before them may have been long."""
    bench = make_bench(limiter=limiter, limits=[ONE])
    bench.scheduler.start()

    def is_possible() -> bool:
        bench.submit(str(len(bench.answers)))
        bench.wait(len(bench.answers) + 1)
        resting(bench)
        return bench.scheduler._inline_execution.is_possible

    until(is_possible)
    return bench


def submit_inline(bench: Bench, id: str) -> None:
    """Submit a request as a thread does that executes short ones itself."""
    deferred = Deferred()
    pending = bench.request(id)
    pending.defer = deferred.add
    bench.scheduler.submit(pending)
    deferred.run()


def test_a_short_execution_on_the_submitting_thread_takes_its_turn(make_bench: MakeBench, limiter: RateLimiter) -> None:
    bench = short(make_bench, limiter)
    answered = len(bench.answers)
    held: list[int] = []
    execute = bench.backend.execute

    def noting(requests: object, batch_sizes: object) -> object:
        held.append(limiter.metrics()[0].held)
        assert threading.current_thread() is threading.main_thread()
        return execute(requests, batch_sizes)  # type: ignore[arg-type]

    bench.backend.execute = noting  # type: ignore[method-assign, assignment]
    submit_inline(bench, "a")
    assert (len(bench.answers), held) == (answered + 1, [1])
    assert limiter.metrics()[0].held == 0


def test_the_submitting_thread_does_not_wait_for_a_turn(make_bench: MakeBench, limiter: RateLimiter) -> None:
    bench = short(make_bench, limiter)
    answered = len(bench.answers)
    holder = holding(make_bench, limiter)
    submit_inline(bench, "a")
    waiting(bench)
    assert len(bench.answers) == answered
    holder.backend.gate.set()
    bench.wait(answered + 1)
