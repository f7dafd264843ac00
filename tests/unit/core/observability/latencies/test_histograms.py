"""The histograms of a version, counted through its statistics."""

from __future__ import annotations

import pytest

from tests.unit.pending_requests import pending_request
from trident.core.inference.pending_request import PendingRequest
from trident.core.observability.latencies import Exemplar, HistogramMetrics, LatencyMeters
from trident.core.observability.latency_options import (
    COMPUTE,
    DEFAULT_BUCKETS,
    FIRST_RESPONSE,
    QUEUE,
    REQUEST,
    LatencyOptions,
)
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import FailureReason

MS = 1_000_000
BOUNDS = {**DEFAULT_BUCKETS, REQUEST: (0.1, 0.2), QUEUE: (0.01,), COMPUTE: (0.05,)}


def measured() -> ModelStatistics:
    statistics = ModelStatistics(wall_clock=lambda: 1_700_000_000_500 * MS)
    statistics.measure(LatencyMeters(LatencyOptions(histograms=True), BOUNDS))
    return statistics


def execute(statistics: ModelStatistics, *requests: PendingRequest, start: int = 50, end: int = 100) -> None:
    """One execution from `start` to `end` milliseconds."""
    statistics.record_batch(requests, len(requests), start * MS, start * MS, end * MS, end * MS)


def request(start_ms: float = 0, id: str = "") -> PendingRequest:
    return pending_request(id, start_ns=int(start_ms * MS), enqueue_ns=int(start_ms * MS))


def histograms(statistics: ModelStatistics) -> dict[str, HistogramMetrics]:
    return {each.name: each for each in statistics.latencies(0).histograms}


def test_nothing_is_kept_unless_it_is_measured() -> None:
    statistics = ModelStatistics()
    execute(statistics, request(0, "id"))
    assert statistics.latencies(0).histograms == ()
    statistics = ModelStatistics()
    statistics.measure(LatencyMeters(LatencyOptions(summaries=True), BOUNDS))
    assert statistics.latencies(0).histograms == ()


def test_every_successful_request_is_in_one_bucket_of_each_histogram() -> None:
    statistics = measured()
    execute(statistics, request(0), request(45), end=100)
    execute(statistics, request(0), start=120, end=250)
    found = histograms(statistics)
    assert found[REQUEST].counts == (2, 0, 1)
    assert found[REQUEST].sum == pytest.approx(0.1 + 0.055 + 0.25)
    assert found[QUEUE].counts == (1, 2)
    assert found[QUEUE].sum == pytest.approx(0.05 + 0.005 + 0.12)
    assert found[COMPUTE].counts == (2, 1)
    assert found[COMPUTE].sum == pytest.approx(2 * 0.05 + 0.13)
    assert found[FIRST_RESPONSE].counts == (2, 1, 0, 0, 0)
    assert found[FIRST_RESPONSE].sum == 405
    assert all(each.count == 3 for each in found.values())


@pytest.mark.parametrize(("duration_ms", "bucket"), [(100, 0), (100.999, 0), (101, 1), (5000.5, 3), (5001, 4)])
def test_the_first_response_is_counted_in_whole_milliseconds(duration_ms: float, bucket: int) -> None:
    statistics = measured()
    statistics.record_failure(request(), FailureReason.BACKEND, int(duration_ms * MS), "no")
    execute(statistics, request(5001 - duration_ms), start=5001, end=5001)
    counts = histograms(statistics)[FIRST_RESPONSE].counts
    assert counts[bucket] == sum(counts) == 2


def test_a_failure_is_a_first_response_and_nothing_else() -> None:
    statistics = measured()
    statistics.record_failure(request(0, "failed"), FailureReason.REJECTED, 600 * MS, "no")
    found = histograms(statistics)
    assert (found[FIRST_RESPONSE].counts, found[FIRST_RESPONSE].sum) == ((0, 0, 1, 0, 0), 600)
    assert found[FIRST_RESPONSE].exemplars[2] == Exemplar(request_id="failed", value=600, timestamp=1_700_000_000.5)
    assert [found[name].count for name in (REQUEST, QUEUE, COMPUTE)] == [0, 0, 0]


def test_the_latest_request_with_an_id_is_the_exemplar_of_its_bucket() -> None:
    statistics = measured()
    execute(statistics, request(0, "first"))
    execute(statistics, request(10, "second"), request(20))
    found = histograms(statistics)
    assert found[REQUEST].exemplars == (
        second(0.09),
        None,
        None,
    )
    assert found[QUEUE].exemplars == (None, second(0.04))
    assert found[COMPUTE].exemplars[0] == second(0.05)
    assert found[FIRST_RESPONSE].exemplars[0] == second(90)


def second(value: float) -> Exemplar:
    return Exemplar(request_id="second", value=value, timestamp=1_700_000_000.5)


@pytest.mark.parametrize(("id", "is_kept"), [("", False), ("x" * 118, True), ("x" * 119, False)])
def test_an_id_that_is_missing_or_too_long_is_no_exemplar(id: str, is_kept: bool) -> None:
    statistics = measured()
    execute(statistics, request(0, id))
    statistics.record_failure(request(0, id), FailureReason.BACKEND, 10_000 * MS, "no")
    for found in histograms(statistics).values():
        assert any(found.exemplars) == is_kept


def test_an_execution_without_success_counts_nothing() -> None:
    statistics = measured()
    execute(statistics)
    assert all(each.count == 0 for each in histograms(statistics).values())


def test_the_first_of_many_responses_is_not_the_end_of_its_request() -> None:
    statistics = measured()
    execute(statistics, request(0), end=100)
    statistics.record_request(request(0, "many"), 20 * MS, 20 * MS, 90 * MS, 900 * MS)
    found = histograms(statistics)
    assert found[FIRST_RESPONSE].counts == (2, 0, 0, 0, 0)
    assert found[FIRST_RESPONSE].sum == 190
    assert found[REQUEST].counts == (1, 0, 1)
    assert found[REQUEST].sum == pytest.approx(1)
    assert found[QUEUE].count == found[COMPUTE].count == 2
    assert found[FIRST_RESPONSE].exemplars[0] == Exemplar(request_id="many", value=90, timestamp=1_700_000_000.5)


def test_a_hit_of_the_cache_is_a_request_that_was_not_executed() -> None:
    statistics = measured()
    statistics.record_cache_hit("second", 90 * MS, 0)
    found = histograms(statistics)
    assert (found[FIRST_RESPONSE].counts, found[FIRST_RESPONSE].sum) == ((1, 0, 0, 0, 0), 90)
    assert (found[REQUEST].count, found[QUEUE].count, found[COMPUTE].count) == (1, 1, 0)
    assert found[FIRST_RESPONSE].exemplars[0] == second(90)
