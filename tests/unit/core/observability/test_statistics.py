"""Statistics of models and their buckets."""

from __future__ import annotations

from itertools import chain, repeat

import pytest

from tests.unit.pending_requests import pending_request
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import CloseReason
from trident.core.observability.history import KEPT_SECONDS, History, Watched, merged_history
from trident.core.observability.latencies import LatencyMeters
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import FailureReason, ResponseKind
from trident.core.options import LatencyOptions


def request(batch_size: int, start_ns: int, enqueue_ns: int) -> PendingRequest:
    return pending_request(batch_size=batch_size, start_ns=start_ns, enqueue_ns=enqueue_ns)


@pytest.fixture
def statistics() -> ModelStatistics:
    """Two executions of three and one items, in the second of which a request failed, and one expired request."""
    times = chain([1_700_000_000_123_456_789], repeat(1_600_000_000_000_000_000))
    statistics = ModelStatistics(wall_clock=lambda: next(times))
    statistics.record_batch([request(2, 10, 20), request(1, 30, 40)], 3, 100, 110, 150, 170, CloseReason.DELAY)
    statistics.record_batch([request(0, 200, 210)], 2, 300, 301, 303, 306)
    statistics.record_failure(request(1, 220, 230), FailureReason.BACKEND, 400, "no")
    statistics.record_failure(request(1, 500, 510), FailureReason.REJECTED, 501, "no")
    return statistics


def test_only_the_first_1024_responses_of_a_request_are_counted() -> None:
    statistics = ModelStatistics()
    for index in (1023, 0, 1024, 0):
        statistics.record_response(index, ResponseKind.EMPTY, 5)
    found = statistics.snapshot().responses
    assert (len(found), [each.index for each in found if any(each.counts)]) == (1024, [0, 1023])
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
    served.statistics["a"].record_failure(pending_request(), FailureReason.BACKEND, 5, "no")
    served.sample()
    (history,) = served.history.of(["a", "idle"], 0)
    assert (history.name, history.seconds) == ("a", (1001, 1003))
    assert history.columns["requests"] == (2.0, 0.0)
    assert history.columns["failures"] == (0.0, 1.0)
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
