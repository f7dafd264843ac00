"""The dynamic batcher on stub instances: batches, delays, orders, changes of instances, turns at resources, the end."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.unit.core.scheduling.scheduler_bench import (
    LIMIT_S,
    LONG_NS,
    Bench,
    MakeBench,
    Stub,
    batching,
    limit,
    model_spec,
)
from tests.unit.core.scheduling.sequence_bench import HOUR, spec_of
from tests.waiting import until
from trident.core.backends.backend import Execution
from trident.core.config.spec import QueuePolicy
from trident.core.errors import QueueFull, RequestCancelled, ServerStopping
from trident.core.inference.pending_request import CancelCause, PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import FailureReason
from trident.core.response_cache.response_cache import LocalCache
from trident.core.scheduling.context import SchedulingContext
from trident.core.scheduling.dynamic_batcher import DynamicBatcher
from trident.core.scheduling.instance import WAITING
from trident.core.scheduling.rate_limiter import RateLimiter
from trident.core.scheduling.response_cache import CachingScheduler
from trident.core.scheduling.scheduler import make_scheduler


def test_callback_runs_on_an_idle_instance_thread(make_bench: MakeBench) -> None:
    bench = make_bench()
    ran: list[str] = []

    def call() -> None:
        ran.append(threading.current_thread().name)

    assert not bench.scheduler.run_when_idle("cpu", call)
    bench.scheduler.start()
    bench.submit("a")
    bench.wait(1)
    until(lambda: bench.scheduler.run_when_idle("cpu", call))
    assert ran == [f"trident-{bench.backend.placement.name}"]
    assert not bench.scheduler.run_when_idle("gpu:0", call)
    with pytest.raises(ZeroDivisionError):
        until(lambda: bench.scheduler.run_when_idle("cpu", lambda: print(1 / 0)))
    bench.backend.gate.clear()
    bench.submit("b")
    bench.begun(0)
    assert not bench.scheduler.run_when_idle("cpu", call)
    bench.backend.gate.set()
    assert bench.wait(2) == ["a", "b"]


def test_executions_change_the_limits_of_a_model_with_a_target(make_bench: MakeBench) -> None:
    now = [1]
    bench = make_bench(replace(batching(), target_p99_ns=1_000_000), max_batch_size=64, clock=lambda: now[0])
    execute = bench.backend.execute

    def for_long(requests: Sequence[InferenceRequest], batch_sizes: Sequence[int]) -> Execution:
        now[0] += 1_000_000 + 200_000 * sum(batch_sizes)
        return execute(requests, batch_sizes)

    bench.backend.execute = for_long  # type: ignore[method-assign]
    bench.scheduler.start()
    assert bench.scheduler._pool.limits.max_batch_size == 64
    count = 0
    while bench.scheduler._pool.limits.max_batch_size == 64:
        bench.scheduler.submit(bench.request("a", batch_size=1 + count % 8))
        count += 1
        bench.wait(count)
        assert count < 2000
    found = bench.statistics.snapshot().tuning
    assert found is not None
    assert (found.target_p99_ns, found.max_size) == (1_000_000, bench.scheduler._pool.limits.max_batch_size)


def test_cancelled_request_frees_its_slot_in_a_limited_queue(make_bench: MakeBench) -> None:
    """While the instance executes, and while a batch waits for its delay."""
    bench = make_bench(batching(8, delay_ns=LONG_NS, policy=QueuePolicy(max_queue_size=2)))
    gone, other = bench.submit("gone", "other")
    gone.cancel()
    assert isinstance(bench.error("gone"), RequestCancelled)
    bench.submit("next")
    with pytest.raises(QueueFull):
        bench.submit("late")
    bench.scheduler.start()
    bench.scheduler.stop()
    assert bench.wait(3) == ["gone", "other", "next"]
    other.cancel()  # it has left the queue
    assert bench.scheduler.drain(LIMIT_S)
    assert bench.backend.batches == [["other", "next"]]
    assert bench.statistics.snapshot().request_failures[FailureReason.CANCELED] == 1


def test_stop_refuses_requests_and_executes_queued_ones_without_delay(make_bench: MakeBench) -> None:
    bench = make_bench(batching(8, delay_ns=LONG_NS))
    bench.scheduler.start()
    bench.submit(*"abc")
    bench.scheduler.stop()
    with pytest.raises(ServerStopping) as caught:
        bench.submit("d")
    assert caught.value.message == (
        "[request id: d] Server is stopping, scheduler for model has stopped accepting new inference requests"
    )
    assert bench.scheduler.drain(LIMIT_S)
    assert (bench.scheduler.queued, bench.scheduler.in_flight) == (0, 0)
    assert sorted(bench.wait(3)) == ["a", "b", "c"]


def test_close_answers_queued_requests(make_bench: MakeBench) -> None:
    bench = make_bench(batching(8, delay_ns=LONG_NS, ordered=True))
    bench.submit(*"ab")
    assert bench.scheduler.close(LIMIT_S)
    assert bench.wait(2) == ["a", "b"]
    assert isinstance(bench.error("a"), ServerStopping)
    assert bench.statistics.snapshot().request_failures[FailureReason.OTHER] == 2
    assert bench.scheduler.close(LIMIT_S)


@pytest.mark.parametrize("kind", ["dynamic", "sequences", "cached"])
def test_closed_scheduler_has_no_reference_cycles(kind: str) -> None:
    """The instances have the buffers of their batches, which may be large."""
    backend = Stub()
    left = weakref.ref(backend)
    spec = (
        spec_of(HOUR)
        if kind == "sequences"
        else model_spec(8, batching(policy=QueuePolicy(default_timeout_ns=LONG_NS)))
    )
    context = SchedulingContext(spec, ModelStatistics())
    scheduler = make_scheduler(context, [backend])
    if kind == "cached":
        cache = LocalCache(1 << 20)
        scheduler = CachingScheduler(context, scheduler, cache, cache.open_scope("m", 1, lambda: None), Unasked())
    gc.collect()
    gc.disable()
    try:
        scheduler.start()
        assert scheduler.close(LIMIT_S)
        del scheduler, backend
        assert left() is None
    finally:
        gc.enable()


class Unasked:
    """A model version to which nothing is submitted again."""

    def submit(self, pending: PendingRequest) -> None:
        raise AssertionError(pending)


def test_idle_thread_holds_no_reference_to_a_rejected_request(make_bench: MakeBench) -> None:
    bench = make_bench(batching())
    request = bench.request("a")
    request.cancelled = CancelCause.CLIENT
    gone = weakref.ref(request.request.inputs[0].data)
    bench.scheduler.start()
    bench.scheduler.submit(request)
    del request
    bench.wait(1)
    bench.answers.clear()
    until(lambda: gone() is None)


@contextmanager
def being_removed(bench: Bench, stub: Stub) -> Iterator[threading.Thread]:
    """Another thread removes `stub` and waits for it. At the end nothing may keep the instance any more."""
    remover = threading.Thread(target=lambda: bench.scheduler.remove(stub)())
    thread = bench.scheduler._find(stub)
    assert thread is not None
    remover.start()
    until(lambda: thread.is_removed)
    yield remover
    remover.join(LIMIT_S)
    assert not remover.is_alive()
    assert thread.join(0)


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


ONE = limit(r=1)


@pytest.fixture
def limiter() -> RateLimiter:
    return RateLimiter()


def waiting_for_turn(bench: Bench, count: int = 1) -> None:
    until(lambda: sum(thread.state is WAITING for thread in bench.scheduler._instances) == count)


def holding(make_bench: MakeBench, limiter: RateLimiter) -> Bench:
    """A bench that executes, and so holds the resource until its gate is set."""
    bench = make_bench(limiter=limiter, limits=[ONE])
    bench.scheduler.start()
    bench.backend.gate.clear()
    bench.submit("h")
    bench.begun()
    return bench


def test_other_instance_waits_for_the_batch_after_a_removal(make_bench: MakeBench) -> None:
    bench = make_bench(batching(2, delay_ns=LONG_NS), instances=2)
    scheduler = bench.scheduler
    scheduler.start()
    bench.submit("a")
    until(lambda: scheduler._pool.delaying is not None)
    assert scheduler._pool.delaying is not None
    holding = scheduler._pool.delaying.backend
    (other,) = [backend for backend in bench.backends if backend is not holding]
    scheduler.remove(holding)()
    until(lambda: scheduler._pool.delaying is scheduler._find(other))
    assert scheduler._pool.waking == 0
    bench.submit("b")
    assert bench.wait(2) == ["a", "b"]
    assert other.batches == [["a", "b"]]


@pytest.mark.parametrize("ends", [DynamicBatcher.close, lambda scheduler: scheduler.close(0)])
def test_a_scheduler_that_waits_for_resources_can_close(
    make_bench: MakeBench, limiter: RateLimiter, ends: object
) -> None:
    """The resource may be held by another scheduler for long."""
    holder = holding(make_bench, limiter)
    bench = make_bench(limiter=limiter, limits=[ONE])
    bench.scheduler.start()
    bench.submit("a")
    waiting_for_turn(bench)
    assert callable(ends)
    closing = threading.Thread(target=ends, args=(bench.scheduler,))
    closing.start()
    closing.join(LIMIT_S)
    assert not closing.is_alive()
    assert bench.error("a") is not None
    assert limiter.metrics()[0].waiting == 0
    holder.backend.gate.set()
