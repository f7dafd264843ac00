"""Latency histograms, summaries, and the slowest requests."""

from __future__ import annotations

import math
import re

import pytest

from tests.unit.pending_requests import pending_request
from trident.core.inference.pending_request import PendingRequest
from trident.core.observability.latencies import Exemplar, HistogramMetrics, LatencyMeters, SummaryMetrics
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import FailureReason
from trident.core.options import (
    COMPUTE,
    DEFAULT_BUCKETS,
    FIRST_RESPONSE,
    QUEUE,
    REQUEST,
    LatencyOptions,
    parse_quantiles,
)


@pytest.mark.parametrize("text", ["0.9", "1.5:0.1", "x:0.1", "0.7:y", "0.7:2", "nan:0.1", "", "0.1:0.0.1"])
def test_invalid_quantiles_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"Invalid option: [{text}]. ")):
        parse_quantiles(f"0.5:0.05,{text}")


def test_quantiles_keep_their_order() -> None:
    assert parse_quantiles("0.99:0,0.5:0.1,0.99:0.2") == (0.99, 0.5)


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


def test_failed_request_counts_in_the_first_response_histogram_only() -> None:
    statistics = measured()
    statistics.record_failure(request(0, "failed"), FailureReason.REJECTED, 600 * MS, "no")
    found = histograms(statistics)
    assert (found[FIRST_RESPONSE].counts, found[FIRST_RESPONSE].sum) == ((0, 0, 1, 0, 0), 600)
    assert found[FIRST_RESPONSE].exemplars[2] == Exemplar(request_id="failed", value=600, timestamp=1_700_000_000.5)
    assert [found[name].count for name in (REQUEST, QUEUE, COMPUTE)] == [0, 0, 0]


def second(value: float) -> Exemplar:
    return Exemplar(request_id="second", value=value, timestamp=1_700_000_000.5)


@pytest.mark.parametrize(("id", "is_kept"), [("", False), ("x" * 118, True), ("x" * 119, False), ("line\nend", False)])
def test_missing_long_or_unprintable_id_is_not_an_exemplar(id: str, is_kept: bool) -> None:
    statistics = measured()
    execute(statistics, request(0, id))
    statistics.record_failure(request(0, id), FailureReason.BACKEND, 10_000 * MS, "no")
    for found in histograms(statistics).values():
        assert any(found.exemplars) == is_kept


def test_first_response_of_a_stream_is_measured_apart_from_its_end() -> None:
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


def test_cache_hit_counts_as_a_request_without_an_execution() -> None:
    statistics = measured()
    statistics.record_cache_hit("second", 90 * MS, 0)
    found = histograms(statistics)
    assert (found[FIRST_RESPONSE].counts, found[FIRST_RESPONSE].sum) == ((1, 0, 0, 0, 0), 90)
    assert (found[REQUEST].count, found[QUEUE].count, found[COMPUTE].count) == (1, 1, 0)
    assert found[FIRST_RESPONSE].exemplars[0] == second(90)


US = 1000
S = 1_000_000_000
START = 1000 * S
WITHIN = 0.01


def measured_summary(*quantiles: float) -> ModelStatistics:
    statistics = ModelStatistics()
    options = LatencyOptions(summaries=True, quantiles=quantiles or (0.5, 0.99))
    statistics.measure(LatencyMeters(options, DEFAULT_BUCKETS))
    return statistics


def execute_once(statistics: ModelStatistics, request_us: int, at_ns: int = START) -> None:
    """A request that ends at `at_ns` and took that long, in the parts 4, 1, 3 and 2 tenths of it."""
    tenth = request_us * US // 10
    pending = pending_request(start_ns=at_ns - 10 * tenth, enqueue_ns=at_ns - 10 * tenth)
    statistics.record_batch([pending], 1, at_ns - 6 * tenth, at_ns - 5 * tenth, at_ns - 2 * tenth, at_ns)


def summaries(statistics: ModelStatistics, now_ns: int = START) -> dict[str, SummaryMetrics]:
    return {each.name: each for each in statistics.latencies(now_ns).summaries}


def request_quantiles(statistics: ModelStatistics, now_ns: int = START) -> list[float]:
    return [value for _, value in summaries(statistics, now_ns)["nv_inference_request_summary_us"].quantiles]


def test_quantiles_of_many_values_are_within_one_percent() -> None:
    statistics = measured_summary(0.0, 0.5, 0.9, 0.99, 1.0)
    for duration in range(1000, 101_000, 100):
        execute_once(statistics, duration)
    expected = [1000, 50_900, 90_900, 99_900, 100_900]
    assert request_quantiles(statistics) == [pytest.approx(each, rel=WITHIN) for each in expected]


def test_cache_hits_and_misses_have_summaries() -> None:
    statistics = measured_summary(0.5)
    statistics.record_cache_miss(30 * US)
    execute_once(statistics, 1000)
    statistics.record_cache_insertion(30 * US, 10 * US, START)
    for duration in (3, 5, 7):
        statistics.record_cache_hit("", duration * US, START)
    found = summaries(statistics)
    shown = {name: (each.quantiles[0][1], each.sum, each.count) for name, each in found.items()}
    near = {
        name: (pytest.approx(value, rel=WITHIN), total, count)
        for name, (value, total, count) in {
            "nv_inference_request_summary_us": (5, 1015, 4),
            "nv_inference_queue_summary_us": (0, 400, 4),
            "nv_inference_compute_input_summary_us": (100, 100, 1),
            "nv_inference_compute_infer_summary_us": (300, 300, 1),
            "nv_inference_compute_output_summary_us": (200, 200, 1),
            "nv_cache_hit_summary_per_model": (5, 15, 3),
            "nv_cache_miss_summary_per_model": (40, 40, 1),
        }.items()
    }
    assert shown == near


def test_summary_forgets_values_older_than_a_minute() -> None:
    statistics = measured_summary(0.5)
    execute_once(statistics, 1000, START)
    execute_once(statistics, 9000, START + 30 * S)
    assert request_quantiles(statistics, START + 47 * S) == [pytest.approx(1000, rel=WITHIN)]
    assert request_quantiles(statistics, START + 61 * S) == [pytest.approx(9000, rel=WITHIN)]
    assert math.isnan(request_quantiles(statistics, START + 91 * S)[0])
    found = summaries(statistics, START + 10_000 * S)["nv_inference_request_summary_us"]
    assert (found.sum, found.count) == (10_000, 2)
