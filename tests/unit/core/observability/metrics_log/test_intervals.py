from __future__ import annotations

from dataclasses import replace

from trident.core.observability.hardware import CpuReading, GpuReading, HardwareReading
from trident.core.observability.metrics.snapshot import MetricsSnapshot, ModelMetrics
from trident.core.observability.metrics_log import Intervals
from trident.core.observability.metrics_report import FIGURES, OF_SERVER, Report
from trident.core.observability.model_statistics import ModelStatistics

ZERO = ModelStatistics().snapshot()


def version(model: str, number: int, successes: int, namespace: str | None = None) -> ModelMetrics:
    statistics = replace(ZERO, request_success=successes, inference_count=successes, pending=number)
    return ModelMetrics(
        model=model, version=number, statistics=statistics, load_duration_secs=number, namespace=namespace
    )


def values(report: Report) -> dict[str, int | float]:
    return {figure.name: figure.value for figure in report.figures}


def test_there_is_a_report_of_the_server_and_one_of_each_model() -> None:
    intervals = Intervals()
    snapshot = MetricsSnapshot(models=(version("b", 1, 10), version("b", 2, 5), version("a", 1, 1)))
    server, first, second = intervals.reports(snapshot, is_ready=True)
    assert (server.model, first.model, second.model) == (None, "a", "b")
    assert [values(each)["request_success"] for each in (server, first, second)] == [16, 1, 15]
    assert [values(each)["pending_request_count"] for each in (server, first, second)] == [4, 1, 3]
    assert values(server)["ready"] == 1


def test_each_report_is_the_difference_to_the_one_before() -> None:
    intervals = Intervals()
    for successes, expected in ((10, 10), (12, 2), (12, 0), (15, 3)):
        server, model = intervals.reports(MetricsSnapshot(models=(version("m", 1, successes),)), is_ready=True)
        assert values(server)["request_success"] == values(model)["request_success"] == expected


def test_a_server_without_models_reports_zeros() -> None:
    (server,) = Intervals().reports(MetricsSnapshot(), is_ready=False)
    assert set(values(server).values()) == {0}
    assert "ready" in values(server)


def test_a_model_that_was_unloaded_has_no_report_and_begins_anew() -> None:
    intervals = Intervals()
    loaded = MetricsSnapshot(models=(version("m", 1, 10),))
    assert len(intervals.reports(loaded, is_ready=True)) == 2
    assert len(intervals.reports(MetricsSnapshot(), is_ready=True)) == 1
    server, _ = intervals.reports(loaded, is_ready=True)
    assert values(server)["request_success"] == 10


def test_models_of_two_repositories_are_apart() -> None:
    models = (version("m", 1, 1, "/one"), version("m", 1, 2, "/two"))
    reports = Intervals().reports(MetricsSnapshot(models=models), is_ready=True)
    assert [(each.model, each.namespace) for each in reports] == [(None, ""), ("m", "/one"), ("m", "/two")]


def test_the_server_has_the_hardware() -> None:
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
