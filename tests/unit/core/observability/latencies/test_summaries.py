"""The quantiles of a version, counted through its statistics."""

from __future__ import annotations

import math

import pytest

from tests.unit.pending_requests import pending_request
from trident.core.observability.latencies import CACHE_SUMMARIES, SUMMARIES, LatencyMeters, SummaryMetrics
from trident.core.observability.latency_options import DEFAULT_BUCKETS, LatencyOptions
from trident.core.observability.model_statistics import ModelStatistics

US = 1000
S = 1_000_000_000
START = 1000 * S
WITHIN = 0.01


def measured(*quantiles: float) -> ModelStatistics:
    statistics = ModelStatistics()
    options = LatencyOptions(summaries=True, quantiles=quantiles or (0.5, 0.99))
    statistics.measure(LatencyMeters(options, DEFAULT_BUCKETS))
    return statistics


def execute(statistics: ModelStatistics, request_us: int, at_ns: int = START) -> None:
    """A request that ends at `at_ns` and took that long, in the parts 4, 1, 3 and 2 tenths of it."""
    tenth = request_us * US // 10
    pending = pending_request(start_ns=at_ns - 10 * tenth, enqueue_ns=at_ns - 10 * tenth)
    statistics.record_batch([pending], 1, at_ns - 6 * tenth, at_ns - 5 * tenth, at_ns - 2 * tenth, at_ns)


def summaries(statistics: ModelStatistics, now_ns: int = START) -> dict[str, SummaryMetrics]:
    return {each.name: each for each in statistics.latencies(now_ns).summaries}


def request_quantiles(statistics: ModelStatistics, now_ns: int = START) -> list[float]:
    return [value for _, value in summaries(statistics, now_ns)["nv_inference_request_summary_us"].quantiles]


def test_quantiles_of_many_values_are_within_one_percent() -> None:
    statistics = measured(0.0, 0.5, 0.9, 0.99, 1.0)
    for duration in range(1000, 101_000, 100):
        execute(statistics, duration)
    expected = [1000, 50_900, 90_900, 99_900, 100_900]
    assert request_quantiles(statistics) == [pytest.approx(each, rel=WITHIN) for each in expected]


def test_every_part_of_a_request_has_its_summary() -> None:
    statistics = measured(0.5)
    execute(statistics, 1000)
    found = summaries(statistics)
    assert list(found) == list(SUMMARIES)
    expected = [1000, 400, 100, 300, 200]
    executed = [found[name] for name in SUMMARIES if name not in CACHE_SUMMARIES]
    assert [each.quantiles for each in executed] == [((0.5, pytest.approx(each, rel=WITHIN)),) for each in expected]
    assert [each.sum for each in executed] == expected
    assert [each.count for each in executed] == [1] * 5


def test_hits_and_misses_of_the_cache_have_theirs() -> None:
    statistics = measured(0.5)
    statistics.record_cache_miss(30 * US)
    execute(statistics, 1000)
    statistics.record_cache_insertion(30 * US, 10 * US, START)
    for duration in (3, 5, 7):
        statistics.record_cache_hit("", duration * US, START)
    found = summaries(statistics)
    shown = {name: (each.quantiles[0][1], each.sum, each.count) for name, each in found.items()}
    near = {
        name: (pytest.approx(value, rel=WITHIN), total, count)
        for name, (value, total, count) in {
            "nv_inference_request_summary_us": (5, 1025, 4),
            "nv_inference_queue_summary_us": (0, 400, 4),
            "nv_inference_compute_input_summary_us": (100, 100, 1),
            "nv_inference_compute_infer_summary_us": (300, 300, 1),
            "nv_inference_compute_output_summary_us": (200, 200, 1),
            "nv_cache_hit_summary_per_model": (5, 15, 3),
            "nv_cache_miss_summary_per_model": (40, 40, 1),
        }.items()
    }
    assert shown == near


def test_a_summary_without_requests_is_nan() -> None:
    found = summaries(measured())
    assert all(math.isnan(value) for each in found.values() for _, value in each.quantiles)
    assert {(each.sum, each.count) for each in found.values()} == {(0, 0)}


def test_durations_of_zero_are_counted() -> None:
    statistics = measured()
    execute(statistics, 0)
    assert request_quantiles(statistics) == [0.0, 0.0]


def test_what_is_older_than_a_minute_is_forgotten_but_counted() -> None:
    statistics = measured(0.5)
    execute(statistics, 1000, START)
    execute(statistics, 9000, START + 30 * S)
    assert request_quantiles(statistics, START + 47 * S) == [pytest.approx(1000, rel=WITHIN)]
    assert request_quantiles(statistics, START + 61 * S) == [pytest.approx(9000, rel=WITHIN)]
    assert math.isnan(request_quantiles(statistics, START + 91 * S)[0])
    found = summaries(statistics, START + 10_000 * S)["nv_inference_request_summary_us"]
    assert (found.sum, found.count) == (10_000, 2)


def test_requests_after_a_long_pause_are_counted() -> None:
    statistics = measured(0.5)
    execute(statistics, 1000, START)
    execute(statistics, 5000, START + 100_000 * S)
    assert request_quantiles(statistics, START + 100_001 * S) == [pytest.approx(5000, rel=WITHIN)]
