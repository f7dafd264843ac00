"""Metrics as events of the log: intervals, activity, and the forms of CloudWatch and Cloud Logging."""

from __future__ import annotations

import io
import json
import logging
from dataclasses import replace
from functools import partial

import pytest

from tests.unit.core.observability.embedded_metric_format import check_document
from tests.unit.pending_requests import pending_request
from tests.waiting import until
from trident.core.observability.hardware import CpuReading, GpuReading, HardwareReading
from trident.core.observability.latencies import LatencyMeters
from trident.core.observability.metrics_log import (
    FIGURES,
    OF_SERVER,
    Intervals,
    MetricsLog,
    Report,
    activity_since,
    cloud_logging_line,
    embedded_metrics_line,
    figures_of,
)
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import FailureReason, MetricsSnapshot, ModelMetrics
from trident.core.options import DEFAULT_BUCKETS, LatencyOptions

SHORT_S = 0.01


class Output(io.StringIO):
    """A stream that notes each write, and fails while `error` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        if self.error is not None:
            raise self.error
        self.writes.append(text)
        return len(text)


def test_lines_that_cannot_be_written_are_lost_with_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    out = Output()
    out.error = BrokenPipeError(32, "Broken pipe")
    failures = 0

    def read() -> MetricsSnapshot:
        nonlocal failures
        failures += 1
        return MetricsSnapshot()

    with caplog.at_level(logging.ERROR, "trident.observability"):
        log = MetricsLog(read, lambda: True, partial(cloud_logging_line, {}), SHORT_S, out=out)
        log.start()
        until(lambda: failures >= 4)
        out.error = None
        until(lambda: out.writes)
        log.close()
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("the metrics cannot be written to stdout: [Errno 32] Broken pipe")


ZERO = ModelStatistics().snapshot()


def version(model: str, number: int, successes: int, namespace: str | None = None) -> ModelMetrics:
    statistics = replace(ZERO, request_success=successes, inference_count=successes, pending=number)
    return ModelMetrics(
        model=model, version=number, statistics=statistics, load_duration_secs=number, namespace=namespace
    )


def values(report: Report) -> dict[str, int | float]:
    return dict(report.figures)


def test_report_without_models_or_requests_has_zeros() -> None:
    (server,) = Intervals().reports(MetricsSnapshot(), is_ready=False)
    assert set(values(server).values()) == {0}
    assert "ready" in values(server)
    version = Version(histograms=True)
    version.execute(100)
    quiet = figures_of(activity_since(version.snapshot(), version.snapshot()))
    assert set(quiet.values()) == {0}
    assert not any("duration" in name for name in quiet)


def test_unloaded_model_is_not_reported_and_restarts_at_zero() -> None:
    intervals = Intervals()
    loaded = MetricsSnapshot(models=(version("m", 1, 10),))
    assert len(intervals.reports(loaded, is_ready=True)) == 2
    assert len(intervals.reports(MetricsSnapshot(), is_ready=True)) == 1
    server, _ = intervals.reports(loaded, is_ready=True)
    assert values(server)["request_success"] == 10


def test_models_of_two_repositories_are_reported_separately() -> None:
    models = (version("m", 1, 1, "/one"), version("m", 1, 2, "/two"))
    reports = Intervals().reports(MetricsSnapshot(models=models), is_ready=True)
    assert [(each.model, each.namespace) for each in reports] == [(None, ""), ("m", "/one"), ("m", "/two")]


def test_hardware_is_in_the_report_of_the_server() -> None:
    hardware = HardwareReading(
        cpu=CpuReading(utilization=0.255, memory_total=1000, memory_used=250),
        gpus=(
            GpuReading(uuid="1", utilization=0.5, memory_total=100, memory_used=10),
            GpuReading(uuid="2", utilization=0.25, memory_total=100, memory_used=90),
            GpuReading(uuid="3"),
        ),
    )
    server, model = Intervals().reports(MetricsSnapshot(models=(version("m", 1, 0),), hardware=hardware), is_ready=True)
    shown = {name: value for name, value in values(server).items() if name in OF_SERVER}
    assert shown == {
        "ready": 1,
        "cpu_utilization": 25.5,
        "cpu_memory_used_bytes": 250,
        "cpu_memory_utilization": 25.0,
        "gpu_utilization": 50.0,
        "gpu_memory_utilization": 90.0,
    }
    assert not OF_SERVER & set(values(model))
    assert list(values(server)) == [name for name in FIGURES if name in values(server)]


MS = 1_000_000


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


def test_interval_reports_counts_since_the_last_one() -> None:
    version = Version()
    version.execute(100, times=5)
    version.statistics.record_failure(pending_request(), FailureReason.OTHER, 1, "no")
    before = version.snapshot(pending=9)
    version.execute(20, batch_size=4)
    version.execute(40)
    version.statistics.record_failure(pending_request(), FailureReason.BACKEND, 1, "no")
    version.statistics.record_failure(pending_request(), FailureReason.REJECTED, 1, "no")
    version.statistics.record_refusal(pending_request(), FailureReason.REJECTED, "full")
    assert figures_of(activity_since(before, version.snapshot(pending=3))) == {
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


def test_percentiles_are_those_of_the_interval() -> None:
    version = Version(histograms=True)
    version.execute(9000, times=50)
    before = version.snapshot()
    version.execute(40, times=98)
    version.execute(2000, times=2)
    found = figures_of(activity_since(before, version.snapshot()))
    assert 25 <= found["request_duration_p50"] <= 50
    assert found["request_duration_p99"] == 1750.0  # half of the bucket from 1 to 2.5 s
    assert 2.5 <= found["queue_duration_p50"] <= 5
    assert 25 <= found["compute_duration_p50"] <= 50


@pytest.mark.parametrize("load_secs", [1.0, 2.0])
def test_a_version_that_was_loaded_again_counts_from_zero(load_secs: float) -> None:
    old, new = Version(), Version(load_secs=load_secs)
    old.execute(10, times=7 if load_secs == 1.0 else 1)
    new.execute(10, times=2)
    assert figures_of(activity_since(old.snapshot(), new.snapshot()))["request_success"] == 2


def test_activity_of_versions_with_different_buckets_is_added() -> None:
    first, second = Version(histograms=True), Version()
    bounds = dict.fromkeys(DEFAULT_BUCKETS, (0.05, 3.0))
    second.statistics.measure(LatencyMeters(LatencyOptions(histograms=True), bounds))
    first.execute(20, times=3)
    second.execute(40)
    activity = activity_since(None, first.snapshot(pending=1))
    activity += activity_since(None, second.snapshot(pending=2))
    found = figures_of(activity)
    assert (found["request_success"], found["pending_request_count"]) == (4, 3)
    assert found["request_duration_mean"] == 25.0
    assert 0 < found["request_duration_p50"] <= 25
    assert 0 < found["request_duration_p99"] <= 50


NOW_NS = 1_700_000_000_123_456_789
EVERYTHING = dict.fromkeys(FIGURES, 1.5)


def test_embedded_metrics_line_is_a_cloudwatch_document() -> None:
    line = embedded_metrics_line("Trident", {"endpoint": "e"}, Report("digits", {"request_success": 7}), NOW_NS)
    assert json.loads(line) == {
        "_aws": {
            "Timestamp": 1_700_000_000_123,
            "CloudWatchMetrics": [
                {
                    "Namespace": "Trident",
                    "Dimensions": [["endpoint", "model"]],
                    "Metrics": [{"Name": "request_success", "Unit": "Count"}],
                }
            ],
        },
        "endpoint": "e",
        "model": "digits",
        "request_success": 7,
    }
    check_document(line)


@pytest.mark.parametrize(
    ("report", "dimensions"),
    [
        (Report(None, EVERYTHING), []),
        (Report("m", EVERYTHING), ["model"]),
        (Report("m", EVERYTHING, "/models"), ["model", "namespace"]),
        (Report('Modèle "1"\n', EVERYTHING), ["model"]),
    ],
)
def test_every_report_is_valid(report: Report, dimensions: list[str]) -> None:
    own = {f"d{number}": "x" for number in range(28)}
    for given in ({}, own):
        line = embedded_metrics_line("Trident", given, report, NOW_NS)
        check_document(line)
        assert json.loads(line)["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [[*given, *dimensions]]


MEASURED = {"request_success": 7, "request_failure": 2, "request_duration_mean": 1.5}


def test_cloud_logging_line_is_a_structured_entry() -> None:
    assert json.loads(cloud_logging_line({"endpoint": "e"}, Report("digits", MEASURED, "/models"), NOW_NS)) == {
        "severity": "INFO",
        "time": "2023-11-14T22:13:20.123456Z",
        "message": "model 'digits': 7 requests answered, 2 failed",
        "logger": "trident.metrics",
        "scope": "model",
        "logging.googleapis.com/labels": {"endpoint": "e", "model": "digits", "namespace": "/models"},
        "metrics": {"request_success": 7, "request_failure": 2, "request_duration_mean": 1.5},
    }
