"""What a version did in an interval, counted by real statistics."""

from __future__ import annotations

import pytest

from tests.unit.pending_requests import pending_request
from trident.core.observability.latencies import LatencyMeters
from trident.core.observability.latency_options import DEFAULT_BUCKETS, LatencyOptions
from trident.core.observability.metrics.snapshot import ModelMetrics
from trident.core.observability.metrics_log import Activity, quantile
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import FailureReason

MS = 1_000_000
INFINITE = float("inf")


class Version:
    """A version that executes requests one by one."""

    def __init__(self, *, histograms: bool = False, load_secs: float = 1.0) -> None:
        self.statistics = ModelStatistics()
        self.load_secs = load_secs
        if histograms:
            self.statistics.measure(LatencyMeters(LatencyOptions(histograms=True), DEFAULT_BUCKETS))

    def execute(self, duration_ms: int, times: int = 1, batch_size: int = 1) -> None:
        """A tenth of the duration is in the queue, the rest in the execution."""
        for _ in range(times):
            pending = pending_request(batch_size=batch_size)
            start = duration_ms * MS // 10
            self.statistics.record_batch([pending], batch_size, start, start, duration_ms * MS, duration_ms * MS)

    def snapshot(self, pending: int = 0) -> ModelMetrics:
        return ModelMetrics(
            model="m",
            version=1,
            statistics=self.statistics.snapshot(pending),
            load_duration_secs=self.load_secs,
            latencies=self.statistics.latencies(0),
        )


def figures(activity: Activity) -> dict[str, int | float]:
    return {figure.name: figure.value for figure in activity.figures()}


def test_histograms_that_were_switched_on_anew_are_those_of_the_interval() -> None:
    version = Version()
    version.execute(100, times=5)
    before = version.snapshot()
    version.statistics.measure(LatencyMeters(LatencyOptions(histograms=True), DEFAULT_BUCKETS))
    version.execute(100)
    found = Activity.since(before, version.snapshot())
    assert [sum(counts.values()) for counts in found.buckets.values()] == [1, 1, 1]


def test_an_interval_has_what_was_counted_in_it() -> None:
    version = Version()
    version.execute(100, times=5)
    version.statistics.record_failure(pending_request(), FailureReason.OTHER, 1, "no")
    before = version.snapshot(pending=9)
    version.execute(20, batch_size=4)
    version.execute(40)
    version.statistics.record_failure(pending_request(), FailureReason.BACKEND, 1, "no")
    version.statistics.record_failure(pending_request(), FailureReason.REJECTED, 1, "no")
    version.statistics.record_refusal(pending_request(), FailureReason.REJECTED, "full")
    assert figures(Activity.since(before, version.snapshot(pending=3))) == {
        "request_success": 2,
        "request_failure": 3,
        "request_failure_rejected": 2,
        "request_failure_canceled": 0,
        "request_failure_backend": 1,
        "request_failure_other": 0,
        "inference_count": 5,
        "execution_count": 2,
        "pending_request_count": 3,
        "request_duration_mean": 30.0,
        "queue_duration_mean": 3.0,
        "compute_duration_mean": 27.0,
    }


def test_without_requests_there_are_zeros_and_no_durations() -> None:
    version = Version(histograms=True)
    version.execute(100)
    quiet = figures(Activity.since(version.snapshot(), version.snapshot()))
    assert set(quiet.values()) == {0}
    assert not any("duration" in name for name in quiet)


def test_percentiles_are_those_of_the_interval() -> None:
    version = Version(histograms=True)
    version.execute(9000, times=50)
    before = version.snapshot()
    version.execute(40, times=98)
    version.execute(2000, times=2)
    found = figures(Activity.since(before, version.snapshot()))
    assert 25 <= found["request_duration_p50"] <= 50
    assert found["request_duration_p99"] == 1750.0  # half of the bucket from 1 to 2.5 s
    assert 2.5 <= found["queue_duration_p50"] <= 5
    assert 25 <= found["compute_duration_p50"] <= 50


@pytest.mark.parametrize("load_secs", [1.0, 2.0])
def test_a_version_that_was_loaded_again_counts_from_zero(load_secs: float) -> None:
    old, new = Version(), Version(load_secs=load_secs)
    old.execute(10, times=7 if load_secs == 1.0 else 1)
    new.execute(10, times=2)
    assert figures(Activity.since(old.snapshot(), new.snapshot()))["request_success"] == 2


def test_versions_are_added_up_though_their_buckets_differ() -> None:
    first, second = Version(histograms=True), Version()
    bounds = dict.fromkeys(DEFAULT_BUCKETS, (0.05, 3.0))
    second.statistics.measure(LatencyMeters(LatencyOptions(histograms=True), bounds))
    first.execute(20, times=3)
    second.execute(40)
    activity = Activity.since(None, first.snapshot(pending=1))
    activity += Activity.since(None, second.snapshot(pending=2))
    found = figures(activity)
    assert (found["request_success"], found["pending_request_count"]) == (4, 3)
    assert found["request_duration_mean"] == 25.0
    assert 0 < found["request_duration_p50"] <= 25
    assert 0 < found["request_duration_p99"] <= 50


@pytest.mark.parametrize(
    ("buckets", "fraction", "value"),
    [
        ({(0, 1): 10}, 0.5, 0.5),
        ({(0, 1): 5, (1, 3): 5}, 0.5, 1.0),
        ({(0, 1): 5, (1, 3): 5}, 0.75, 2.0),
        ({(0, 1): 0, (1, 3): 4, (3, INFINITE): 0}, 0.99, 2.98),
        ({(0, 1): 1, (1, INFINITE): 99}, 0.99, 1.0),
        ({(0, 1): 3}, 0.0, 0.0),
    ],
)
def test_a_quantile_is_found_by_proportion(
    buckets: dict[tuple[float, float], int], fraction: float, value: float
) -> None:
    assert quantile(buckets, fraction) == pytest.approx(value)
