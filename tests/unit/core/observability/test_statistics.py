"""Statistics of models and their buckets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.pending_requests import pending_request
from trident.core.inference.pending_request import CancelCause, PendingRequest
from trident.core.inference.request import CloseReason
from trident.core.observability.history import (
    KEPT_SECONDS,
    LONGEST_ERROR,
    LONGEST_ID,
    MOST,
    History,
    NotedRequest,
    Watched,
    merged_history,
    merged_requests,
)
from trident.core.observability.latencies import LatencyMeters, LatencyMetrics
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import (
    BatchStatistics,
    BatchTuning,
    BucketStatistics,
    BucketUse,
    FailureReason,
    ResponseKind,
)
from trident.core.options import LatencyOptions


class Meters:
    """Records the calls of LatencyMeters."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def observe_batch(self, requests: Sequence[PendingRequest], *rest: int) -> None:
        self.told.append(("batch", [pending.request.id for pending in requests], *rest))

    def observe_failure(self, pending: PendingRequest, *rest: int) -> None:
        self.told.append(("failure", pending.request.id, *rest))

    def observe_hit(self, *rest: object) -> None:
        self.told.append(("hit", *rest))

    def observe_miss(self, *rest: int) -> None:
        self.told.append(("miss", *rest))

    def take_steps(self) -> dict[int, int]:
        return {7: 1}

    def metrics(self, now_ns: int) -> int:
        return now_ns


class Clocked:
    """Statistics with meters, whose wall clock the test sets."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_123
        self.statistics = ModelStatistics(wall_clock=lambda: self.now_ms * 1_000_000 + 999_999)
        self.meters = Meters()
        self.statistics.measure(self.meters)  # type: ignore[arg-type]

    def changes(self, **wanted: object) -> None:
        """The counters that are not as in new statistics."""
        found, new = self.statistics.snapshot(), ModelStatistics().snapshot()
        names = [name for name in found.__dataclass_fields__ if getattr(found, name) != getattr(new, name)]
        assert {name: getattr(found, name) for name in names} == wanted


@pytest.fixture
def clocked() -> Clocked:
    return Clocked()


def named(id: str, batch_size: int, start_ns: int, enqueue_ns: int) -> PendingRequest:
    return pending_request(id, batch_size=batch_size, start_ns=start_ns, enqueue_ns=enqueue_ns)


def of_batches(size: int, count: int, input_ns: int, infer_ns: int, output_ns: int) -> BatchStatistics:
    durations = {"compute_input_ns": input_ns, "compute_infer_ns": infer_ns, "compute_output_ns": output_ns}
    return BatchStatistics(batch_size=size, execution_count=count, **durations)


def of_bucket(batch_size: int, length: int, count: int, elements: int, padding: int) -> BucketStatistics:
    shape = {"batch_size": batch_size, "length": length}
    return BucketStatistics(**shape, execution_count=count, element_count=elements, padding_count=padding)


NO_CLOSES = dict.fromkeys(CloseReason, 0)


def test_each_request_counts_the_durations_of_its_batch(clocked: Clocked) -> None:
    statistics, first_ms = clocked.statistics, clocked.now_ms
    statistics.record_batch([named("a", 2, 10, 20), named("b", 1, 30, 40)], 4, 100, 110, 150, 170, CloseReason.DELAY)
    clocked.now_ms -= 1000
    statistics.record_batch([named("c", 0, 200, 210)], 2, 300, 301, 303, 306)
    statistics.record_batch([named("d", 2, 400, 410)], 4, 500, 507, 518, 531)
    clocked.changes(
        request_success=4,
        request_ns=160 + 140 + 106 + 131,
        queue_ns=80 + 60 + 90 + 90,
        compute_input_ns=2 * 10 + 1 + 7,
        compute_infer_ns=2 * 40 + 2 + 11,
        compute_output_ns=2 * 20 + 3 + 13,
        inference_count=3 + 1 + 2,
        execution_count=3,
        last_inference_ms=first_ms,
        batches=(of_batches(2, 1, 1, 2, 3), of_batches(4, 2, 10 + 7, 40 + 11, 20 + 13)),
        batch_closes={**NO_CLOSES, CloseReason.DELAY: 1, CloseReason.IDLE: 2},
    )
    assert clocked.meters.told == [
        ("batch", ["a", "b"], 100, 110, 150, 170, first_ms),
        ("batch", ["c"], 300, 301, 303, 306, first_ms - 1000),
        ("batch", ["d"], 500, 507, 518, 531, first_ms - 1000),
    ]
    assert (statistics.turnover, statistics.last_inference_ms) == (4, first_ms)
    noted = NotedRequest(id="a", ended_ms=first_ms, duration_ns=160, queue_ns=80, compute_input_ns=10)
    noted = replace(noted, compute_infer_ns=40, compute_output_ns=20, batch_size=4, batch_close="delay")
    report = statistics.requests("m", 3)
    assert (report.name, report.version, report.failed) == ("m", 3, ())
    assert [each.id for each in report.slowest] == ["a", "b", "d", "c"]
    assert report.slowest[0] == noted


def test_requests_answered_later_and_of_ensembles_are_counted(clocked: Clocked) -> None:
    """Those that are answered later, and those of ensembles, which do not wait in a queue of their own."""
    statistics, now_ms = clocked.statistics, clocked.now_ms
    statistics.record_request(named("a", 3, 10, 20), 100, 107, 111, 130)
    clocked.now_ms -= 5
    statistics.record_composed(named("b", 2, 200, 210), 220, 300, 5, 11, 17)
    statistics.record_composed(named("c", 0, 400, 410), 0, 500, 1, 2, 3)
    clocked.changes(
        request_success=3,
        request_ns=120 + 100 + 100,
        queue_ns=80,
        compute_input_ns=7 + 5 + 1,
        compute_infer_ns=23 + 11 + 2,
        compute_output_ns=17 + 3,
        inference_count=3 + 2 + 1,
        execution_count=2,
        last_inference_ms=now_ms,
        batches=(of_batches(1, 1, 1, 2, 3), of_batches(2, 1, 5, 11, 17)),
    )
    assert clocked.meters.told == [
        ("batch", ["a"], 100, 107, 130, 130, now_ms, 111),
        ("batch", ["b"], 210, 215, 226, 300, now_ms - 5, 220),
        ("batch", ["c"], 410, 411, 413, 500, now_ms - 5, 0),
    ]
    a, b, c = statistics.requests("m", 1).slowest
    wanted = NotedRequest(id="a", ended_ms=now_ms, duration_ns=120, queue_ns=80, compute_input_ns=7)
    assert a == replace(wanted, compute_infer_ns=23, batch_size=3)
    assert (b.id, b.queue_ns, b.batch_size, c.id, c.batch_size) == ("b", 0, 2, "c", 1)


def test_failures_are_counted_by_their_reason_and_their_cause(clocked: Clocked) -> None:
    statistics, now_ms = clocked.statistics, clocked.now_ms
    late = named("late" * 100, 1, 10, 20)
    statistics.record_failure(late, FailureReason.REJECTED, 40, "e" * 3000)
    clocked.now_ms += 7
    statistics.record_failure(named("b", 1, 100, 110), FailureReason.BACKEND, 170, "no")
    for cause in (CancelCause.DEADLINE, None):
        gone = named("gone", 1, 200, 210)
        gone.cancelled = cause
        statistics.record_failure(gone, FailureReason.CANCELED, 300, "")
    statistics.record_failure(named("other", 1, 100, 110), FailureReason.OTHER, 101, "no")
    statistics.record_refusal(named("full", 1, 5, 6), FailureReason.REJECTED, "full")
    statistics.record_refusal(named("full", 1, 5, 6), FailureReason.REJECTED, "full")
    statistics.record_step_failure()
    statistics.record_step_failure()
    clocked.changes(
        request_failures={
            **dict.fromkeys(FailureReason, 0),
            FailureReason.REJECTED: 1,
            FailureReason.BACKEND: 1,
            FailureReason.CANCELED: 2,
            FailureReason.OTHER: 1,
        },
        request_refusals={FailureReason.REJECTED: 2},
        request_cancellations={
            CancelCause.CLIENT: 1,
            CancelCause.DEADLINE: 1,
            CancelCause.QUEUE_TIMEOUT: 1,
            CancelCause.SERVER: 0,
        },
        step_failures=2,
        failure_ns=30 + 70 + 100 + 100 + 1,
    )
    assert clocked.meters.told == [
        ("failure", late.request.id, 30, now_ms),
        ("failure", "b", 70, now_ms + 7),
        ("failure", "gone", 100, now_ms + 7),
        ("failure", "gone", 100, now_ms + 7),
        ("failure", "other", 1, now_ms + 7),
    ]
    assert statistics.turnover == 7
    failed = statistics.requests("m", 1).failed
    assert [each.duration_ns for each in failed] == [70, 100, 100, 1, 0, 0, 30]
    assert failed[0] == NotedRequest(id="b", ended_ms=now_ms + 7, duration_ns=70, failure="BACKEND", error="no")
    assert (len(failed[-1].id), len(failed[-1].error)) == (LONGEST_ID, LONGEST_ERROR)


def test_answers_of_the_response_cache_are_counted(clocked: Clocked) -> None:
    statistics, now_ms = clocked.statistics, clocked.now_ms
    statistics.record_cache_hit("a", 11, 100)
    clocked.now_ms -= 1
    statistics.record_cache_hit("b", 13, 200)
    statistics.record_cache_miss(17)
    statistics.record_cache_miss(19)
    statistics.record_cache_insertion(17, 23, 300)
    statistics.record_cache_insertion(19, 29, 400)
    clocked.changes(
        request_success=2,
        request_ns=11 + 13 + 23 + 29,
        last_inference_ms=now_ms,
        cache_hit_count=2,
        cache_hit_ns=11 + 13,
        cache_miss_count=2,
        cache_miss_ns=17 + 19 + 23 + 29,
    )
    hits = [("hit", "a", 11, 100, now_ms), ("hit", "b", 13, 200, now_ms - 1)]
    assert clocked.meters.told == [*hits, ("miss", 17 + 23, 300), ("miss", 19 + 29, 400)]


def test_buckets_and_a_target_are_shown(clocked: Clocked) -> None:
    statistics, tuning = clocked.statistics, BatchTuning(target_p99_ns=3, delay_ns=4, max_size=5)
    for use in (BucketUse(4, 8, 20, 12), BucketUse(4, 8, 22, 10), BucketUse(2, 8, 5, 11), BucketUse(2, 4, 1, 7)):
        statistics.record_bucket(use)
    statistics.note_tuning(tuning)
    clocked.changes(
        buckets=(
            of_bucket(2, 4, 1, 1, 7),
            of_bucket(2, 8, 1, 5, 11),
            of_bucket(4, 8, 2, 42, 22),
        ),
        tuning=tuning,
    )
    assert (statistics.snapshot(9).pending, statistics.snapshot().pending) == (9, 0)
    assert (statistics.take_steps(), statistics.latencies(5)) == ({7: 1}, 5)
    statistics.measure(None)
    assert (statistics.take_steps(), statistics.latencies(5)) == ({}, LatencyMetrics())


def test_executions_are_known_while_they_run(clocked: Clocked) -> None:
    statistics = clocked.statistics
    assert (statistics.executions(), statistics.oldest_execution_ns, statistics.given_up()) == ([], 0, [])
    now_ns = time.monotonic_ns()
    batch, alone = [named("a", 2, 0, 0), named("b", 0, 0, 0)], [named("c", 1, 0, 0)]
    statistics.begin_execution("m_0", alone, now_ns - 50)
    statistics.begin_execution("m_1", batch, now_ns - 10**12)
    wanted = [("m_1", now_ns - 10**12, 3, ["a", "b"]), ("m_0", now_ns - 50, 1, ["c"])]
    assert statistics.executions() == wanted
    assert 10**12 <= statistics.snapshot().oldest_execution_ns < 2 * 10**12
    assert statistics.last_inference_ms == clocked.now_ms, "a model that executes is not idle"
    batch[0].cancelled, alone[0].cancelled = CancelCause.SERVER, CancelCause.CLIENT
    assert statistics.given_up() == []
    batch[1].cancelled = CancelCause.SERVER
    assert statistics.given_up() == ["m_1"]
    statistics.end_execution("m_1")
    statistics.end_execution("m_1")
    assert [each.instance for each in statistics.executions()] == ["m_0"]
    statistics.begin_execution("m_0", alone, now_ns + 10**15)
    assert statistics.oldest_execution_ns == 0


def test_the_slowest_requests_of_an_interval_are_noted(clocked: Clocked) -> None:
    statistics = clocked.statistics

    def answer(id: str, took_ns: int) -> None:
        statistics.record_batch([named(id, 1, 0, 0)], 1, 0, 0, took_ns, took_ns)

    for number in range(MOST + 5):
        answer(f"slow {number}", 100 + number)
    answer("quick", 50)
    answer("as the least", 105)
    statistics.record_batch([named("slow too", 1, 0, 0), named("beside it", 1, 190, 0)], 1, 0, 0, 200, 200)
    found = [each.id for each in statistics.requests("m", 1).slowest]
    assert found == ["slow too", *(f"slow {number}" for number in reversed(range(6, MOST + 5)))]
    clocked.now_ms += 3_600_000 // 2
    answer("of another interval", 1)
    statistics.record_composed(named("composed", 1, 0, 0), 0, 2, 0, 0, 0)
    answer("slower", 3)
    assert {each.id for each in statistics.requests("m", 1).slowest} == set(found)
    statistics.record_failure(named("failed", 1, 0, 0), FailureReason.BACKEND, 12, "no")
    clocked.now_ms += 3_600_000 * 3 // 4
    report = statistics.requests("m", 1)
    assert [each.id for each in report.slowest] == ["slower", "composed", "of another interval"]
    others = ModelStatistics()
    others.record_batch([named(f"other {ns}", 1, 0, 0) for ns in range(MOST)], 1, 0, 0, 1, 2)
    (merged,) = merged_requests([report, others.requests("m", 1)])
    assert [each.id for each in (*merged.slowest[:2], *merged.failed)] == ["slower", "composed", "failed"]
    assert len(merged.slowest) == MOST
    clocked.now_ms += 3_600_000 // 2
    assert statistics.requests("m", 1).failed == ()


def test_only_the_first_1024_responses_of_a_request_are_counted() -> None:
    statistics = ModelStatistics()
    for index in (1023, 0, 1024, 0):
        statistics.record_response(index, ResponseKind.EMPTY, 5)
    statistics.record_response(1, ResponseKind.SUCCESS, 7)
    statistics.record_response(1, ResponseKind.SUCCESS, 8)
    found = statistics.snapshot().responses
    assert (found[1].counts[ResponseKind.SUCCESS], found[1].durations_ns[ResponseKind.SUCCESS]) == (2, 15)
    assert (len(found), [each.index for each in found if any(each.counts)]) == (1024, [0, 1, 1023])
    assert (found[0].counts[ResponseKind.EMPTY], found[0].durations_ns[ResponseKind.EMPTY]) == (2, 10)


MS = 1_000_000


class Served:
    """Versions whose history is sampled by hand, at the times that the test sets."""

    def __init__(self, *names: str) -> None:
        self.now = 1000.0
        self.queued = 0
        self.restarts = 0
        self.sequences = 0
        self.statistics = {name: self._made() for name in names}
        self.history = History(self._watched, wall_clock=lambda: self.now)

    def _made(self) -> ModelStatistics:
        statistics = ModelStatistics()
        statistics.measure(LatencyMeters(LatencyOptions(steps=True), {}))
        return statistics

    def _watched(self) -> list[Watched]:
        return [
            Watched(name, 1, statistics, self.queued, self.restarts, self.sequences)
            for name, statistics in self.statistics.items()
        ]

    def answer(self, name: str, took_ms: int, queue_ms: int = 0) -> None:
        pending = pending_request(start_ns=0, enqueue_ns=0)
        begin, end = queue_ms * MS, took_ms * MS
        self.statistics[name].record_batch([pending], 1, begin, begin, end, end)

    def sample(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.history.sample()


def test_history_has_the_activity_of_each_second() -> None:
    served = Served("a", "idle")
    served.answer("a", 4, queue_ms=1)
    served.answer("a", 8)
    served.sample()
    served.sample()
    served.statistics["a"].record_batch([], 4, 0, 0, 1, 1)
    served.statistics["a"].record_failure(pending_request(), FailureReason.BACKEND, 5, "no")
    served.sample()
    (history,) = served.history.of(["a", "idle"], 0)
    assert (history.name, history.seconds) == ("a", (1001, 1003))
    assert history.columns["requests"] == (2.0, 0.0)
    assert history.columns["failures"] == (0.0, 1.0)
    assert (history.columns["items"], history.columns["executions"]) == ((2.0, 4.0), (2.0, 1.0))
    assert history.columns["queue_us"] == (1000.0, 0.0)
    assert history.columns["p99_us"] == (pytest.approx(8000, rel=0.01), 0.0)
    assert served.history.of(["a"], 1001)[0].seconds == (1003,)


def test_restarts_and_sequences_are_noted_in_seconds_without_a_request() -> None:
    served = Served("a")
    served.sample()
    served.restarts, served.sequences = 2, 3
    served.sample()
    served.sample()
    served.sequences = 1
    served.sample()
    (history,) = served.history.of(["a"], 0)
    assert history.seconds == (1002, 1004)
    assert (history.columns["restarts"], history.columns["sequences"]) == ((2.0, 0.0), (3.0, 1.0))
    assert served.history.activity()["a", 1].restarts == 2


def test_activity_sums_the_last_minute() -> None:
    served = Served("a")
    served.answer("a", 500)
    served.sample()
    served.sample(60)
    assert served.history.activity() == {}
    for _ in range(50):
        served.answer("a", 2)
        served.answer("a", 2)
        served.sample()
    served.answer("a", 40)
    served.queued = 3
    served.sample()
    activity = served.history.activity()["a", 1]
    assert (activity.requests, activity.executions, activity.queued) == (101, 101, 3)
    assert [activity.p50_us, activity.p99_us] == [pytest.approx(2000, rel=0.01)] * 2
    served.answer("a", 41)
    served.sample()
    assert served.history.activity()["a", 1].p99_us == pytest.approx(40_000, rel=0.03)


def test_history_forgets_old_seconds_and_restarts_with_a_reload() -> None:
    served = Served("a")
    served.answer("a", 1)
    served.sample()
    served.statistics["a"] = served._made()
    served.answer("a", 1)
    served.sample()
    assert served.history.of(["a"], 0)[0].columns["requests"] == (1.0, 1.0)
    served.sample(KEPT_SECONDS + 1)
    assert served.history.of(["a"], 0) == []


def test_histories_of_several_engines_are_merged_by_second() -> None:
    engines = [Served("a"), Served("a")]
    for engine, took in zip(engines, (2, 6), strict=True):
        engine.answer("a", took)
        engine.sample()
    engines[0].answer("a", 1)
    engines[0].sample()
    (merged,) = merged_history(part for engine in engines for part in engine.history.of(["a"], 0))
    assert merged.seconds == (1001, 1002)
    assert merged.columns["requests"] == (2.0, 1.0)
    assert merged.columns["p50_us"] == (pytest.approx(6000, rel=0.01), pytest.approx(1000, rel=0.01))
