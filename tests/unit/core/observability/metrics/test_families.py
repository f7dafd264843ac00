from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from trident.core.inference.pending_request import CancelCause
from trident.core.inference.request import CloseReason
from trident.core.observability.hardware import CpuReading, GpuReading, HardwareReading, PinnedMemory
from trident.core.observability.metrics.exposition import render
from trident.core.observability.metrics.families import metric_families
from trident.core.observability.metrics.snapshot import (
    DownloadMetrics,
    LoadMetrics,
    MetricsOptions,
    MetricsSnapshot,
    ModelMetrics,
    VersionStateMetrics,
)
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import FailureReason, StatisticsSnapshot

STATISTICS = StatisticsSnapshot(
    request_success=5,
    request_failures={
        FailureReason.REJECTED: 0,
        FailureReason.CANCELED: 2,
        FailureReason.BACKEND: 3,
        FailureReason.OTHER: 4,
    },
    inference_count=9,
    execution_count=2,
    request_ns=1_234_999,
    queue_ns=234_000,
    compute_input_ns=10_500,
    compute_infer_ns=900_000,
    compute_output_ns=999,
    pending=7,
    request_refusals={FailureReason.REJECTED: 1},
    batch_closes={CloseReason.IDLE: 1, CloseReason.DELAY: 1},
    request_cancellations={CancelCause.DEADLINE: 2},
)
STATES = ("LOADING", "READY", "UNLOADING", "UNAVAILABLE")
DIGITS = ModelMetrics(model="digits", version=1, statistics=STATISTICS, load_duration_secs=0.125)
IDLE = ModelMetrics(
    model="idle",
    version=3,
    statistics=ModelStatistics().snapshot(),
    load_duration_secs=2.0,
    namespace="/models",
    tags={"team": 'a"b', "cost centre": "7"},
)
HARDWARE = HardwareReading(
    cpu=CpuReading(utilization=0.022556390977443608, memory_total=16502972416, memory_used=9946726400),
    gpus=(
        GpuReading(
            uuid="GPU-1",
            utilization=0.25,
            memory_total=80_000_000_000,
            memory_used=1_000_000,
            power_usage=90.5,
            power_limit=700.0,
            energy=12.75,
        ),
        GpuReading(uuid="GPU-2", utilization=0.0),
    ),
    pinned=PinnedMemory(total=268435456, used=64),
)
SNAPSHOT = MetricsSnapshot(models=(DIGITS, IDLE), hardware=HARDWARE)

TAGGED = '_cost_centre="7",_team="a\\"b",model="idle",namespace="/models"'
# Labels are sorted by their names.
BEFORE_MODEL, FROM_MODEL = TAGGED.split("model=")
GIVEN_UP = "\n".join(
    f'trident_inference_cancellations_total{{{BEFORE_MODEL}cause="{cause.value}",model={FROM_MODEL},version="3"}} 0'
    for cause in CancelCause
)
PAGE = f"""\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{{model="digits",version="1"}} 5
nv_inference_request_success{{{TAGGED},version="3"}} 0
# HELP nv_inference_request_failure Number of failed inference requests, all batch sizes
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{{model="digits",reason="REJECTED",version="1"}} 1
nv_inference_request_failure{{model="digits",reason="CANCELED",version="1"}} 2
nv_inference_request_failure{{model="digits",reason="BACKEND",version="1"}} 3
nv_inference_request_failure{{model="digits",reason="OTHER",version="1"}} 4
nv_inference_request_failure{{{TAGGED},reason="REJECTED",version="3"}} 0
nv_inference_request_failure{{{TAGGED},reason="CANCELED",version="3"}} 0
nv_inference_request_failure{{{TAGGED},reason="BACKEND",version="3"}} 0
nv_inference_request_failure{{{TAGGED},reason="OTHER",version="3"}} 0
# HELP nv_inference_count Number of inferences performed (does not include cached requests)
# TYPE nv_inference_count counter
nv_inference_count{{model="digits",version="1"}} 9
nv_inference_count{{{TAGGED},version="3"}} 0
# HELP nv_inference_exec_count Number of model executions performed (does not include cached requests)
# TYPE nv_inference_exec_count counter
nv_inference_exec_count{{model="digits",version="1"}} 2
nv_inference_exec_count{{{TAGGED},version="3"}} 0
# HELP nv_inference_request_duration_us Cumulative inference request duration in microseconds (includes cached requests)
# TYPE nv_inference_request_duration_us counter
nv_inference_request_duration_us{{model="digits",version="1"}} 1234
nv_inference_request_duration_us{{{TAGGED},version="3"}} 0
# HELP nv_inference_queue_duration_us Cumulative inference queuing duration in microseconds (includes cached requests)
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{{model="digits",version="1"}} 234
nv_inference_queue_duration_us{{{TAGGED},version="3"}} 0
# HELP nv_inference_compute_input_duration_us Cumulative compute input duration in microseconds \
(does not include cached requests)
# TYPE nv_inference_compute_input_duration_us counter
nv_inference_compute_input_duration_us{{model="digits",version="1"}} 10
nv_inference_compute_input_duration_us{{{TAGGED},version="3"}} 0
# HELP nv_inference_compute_infer_duration_us Cumulative compute inference duration in microseconds \
(does not include cached requests)
# TYPE nv_inference_compute_infer_duration_us counter
nv_inference_compute_infer_duration_us{{model="digits",version="1"}} 900
nv_inference_compute_infer_duration_us{{{TAGGED},version="3"}} 0
# HELP nv_inference_compute_output_duration_us Cumulative inference compute output duration in microseconds \
(does not include cached requests)
# TYPE nv_inference_compute_output_duration_us counter
nv_inference_compute_output_duration_us{{model="digits",version="1"}} 0
nv_inference_compute_output_duration_us{{{TAGGED},version="3"}} 0
# HELP nv_inference_pending_request_count Instantaneous number of pending requests awaiting execution per-model.
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{{model="digits",version="1"}} 7
nv_inference_pending_request_count{{{TAGGED},version="3"}} 0
# HELP nv_model_load_duration_secs Model load time in seconds
# TYPE nv_model_load_duration_secs gauge
nv_model_load_duration_secs{{model="digits",version="1"}} 0.125
nv_model_load_duration_secs{{{TAGGED},version="3"}} 2
# HELP trident_batch_close_total Executions by the reason for which their batch was closed
# TYPE trident_batch_close_total counter
trident_batch_close_total{{model="digits",reason="idle",version="1"}} 1
trident_batch_close_total{{model="digits",reason="delay",version="1"}} 1
trident_batch_close_total{{{TAGGED},reason="idle",version="3"}} 0
trident_batch_close_total{{{TAGGED},reason="full",version="3"}} 0
trident_batch_close_total{{{TAGGED},reason="preferred",version="3"}} 0
trident_batch_close_total{{{TAGGED},reason="delay",version="3"}} 0
trident_batch_close_total{{{TAGGED},reason="deadline",version="3"}} 0
trident_batch_close_total{{{TAGGED},reason="priority",version="3"}} 0
trident_batch_close_total{{{TAGGED},reason="shape",version="3"}} 0
trident_batch_close_total{{{TAGGED},reason="sequence",version="3"}} 0
trident_batch_close_total{{{TAGGED},reason="callers",version="3"}} 0
# HELP trident_inference_cancellations_total Requests that were given up by their callers or their queues
# TYPE trident_inference_cancellations_total counter
trident_inference_cancellations_total{{cause="deadline",model="digits",version="1"}} 2
{GIVEN_UP}
# HELP nv_pinned_memory_pool_total_bytes Pinned memory pool total memory size, in bytes
# TYPE nv_pinned_memory_pool_total_bytes gauge
nv_pinned_memory_pool_total_bytes 268435456
# HELP nv_pinned_memory_pool_used_bytes Pinned memory pool used memory size, in bytes
# TYPE nv_pinned_memory_pool_used_bytes gauge
nv_pinned_memory_pool_used_bytes 64
# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{{gpu_uuid="GPU-1"}} 0.25
nv_gpu_utilization{{gpu_uuid="GPU-2"}} 0
# HELP nv_gpu_memory_total_bytes GPU total memory, in bytes
# TYPE nv_gpu_memory_total_bytes gauge
nv_gpu_memory_total_bytes{{gpu_uuid="GPU-1"}} 80000000000
# HELP nv_gpu_memory_used_bytes GPU used memory, in bytes
# TYPE nv_gpu_memory_used_bytes gauge
nv_gpu_memory_used_bytes{{gpu_uuid="GPU-1"}} 1000000
# HELP nv_gpu_power_usage GPU power usage in watts
# TYPE nv_gpu_power_usage gauge
nv_gpu_power_usage{{gpu_uuid="GPU-1"}} 90.5
# HELP nv_gpu_power_limit GPU power management limit in watts
# TYPE nv_gpu_power_limit gauge
nv_gpu_power_limit{{gpu_uuid="GPU-1"}} 700
# HELP nv_energy_consumption GPU energy consumption in joules since the Triton Server started
# TYPE nv_energy_consumption counter
nv_energy_consumption{{gpu_uuid="GPU-1"}} 12.75
# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.02255639097744361
# HELP nv_cpu_memory_total_bytes CPU total memory (RAM), in bytes
# TYPE nv_cpu_memory_total_bytes gauge
nv_cpu_memory_total_bytes 16502972416
# HELP nv_cpu_memory_used_bytes CPU used memory (RAM), in bytes
# TYPE nv_cpu_memory_used_bytes gauge
nv_cpu_memory_used_bytes 9946726400
# HELP trident_oldest_execution_seconds For how long the oldest execution that runs now has run; 0 if none runs
# TYPE trident_oldest_execution_seconds gauge
trident_oldest_execution_seconds{{model="digits",version="1"}} 0
trident_oldest_execution_seconds{{{TAGGED},version="3"}} 0
"""


def page(snapshot: MetricsSnapshot, options: MetricsOptions | None = None) -> str:
    return render(metric_families(snapshot, options or MetricsOptions())).decode()


def families_on(text: str) -> set[str]:
    return {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}


def test_the_page_is_tritons_line_by_line() -> None:
    assert page(SNAPSHOT).splitlines() == PAGE.splitlines()


def test_a_parser_finds_every_series_under_tritons_name() -> None:
    found = [sample for family in text_string_to_metric_families(page(SNAPSHOT)) for sample in family.samples]
    written = [line for line in PAGE.splitlines() if not line.startswith("#")]
    # This parser appends `_total` to the name of every counter.
    assert [sample.name.removesuffix("_total") for sample in found] == [
        line.split("{")[0].split()[0].removesuffix("_total") for line in written
    ]
    assert [sample.value for sample in found] == [float(line.rsplit(maxsplit=1)[1]) for line in written]
    idle = next(sample for sample in found if sample.labels.get("model") == "idle")
    assert idle.labels == {
        "model": "idle",
        "version": "3",
        "namespace": "/models",
        "_team": 'a"b',
        "_cost_centre": "7",
    }


def test_a_snapshot_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(SNAPSHOT)) == SNAPSHOT


def test_an_empty_snapshot_shows_only_the_pool() -> None:
    assert families_on(page(MetricsSnapshot())) == {
        "nv_pinned_memory_pool_total_bytes",
        "nv_pinned_memory_pool_used_bytes",
    }


def test_each_version_has_one_state_and_loads_are_counted_by_cause_and_result() -> None:
    states = (
        VersionStateMetrics(model="m", version="2", state="READY"),
        VersionStateMetrics(model="bad", version="", state="UNAVAILABLE", namespace="/models"),
    )
    loads = (LoadMetrics(cause="poll", result="failure", count=3),)
    lines = [
        line for line in page(MetricsSnapshot(states=states, loads=loads)).splitlines() if line.startswith("trident")
    ]
    assert lines == [
        *(f'trident_model_version_state{{model="m",state="{s}",version="2"}} {int(s == "READY")}' for s in STATES),
        *(
            f'trident_model_version_state{{model="bad",namespace="/models",state="{s}",version=""}} '
            f"{int(s == 'UNAVAILABLE')}"
            for s in STATES
        ),
        'trident_model_loads_total{cause="poll",result="failure"} 3',
    ]


def test_a_version_on_a_gpu_has_two_reporters_that_add_up() -> None:
    snapshot = MetricsSnapshot(models=(replace(DIGITS, gpu_uuid="GPU-1"),))
    lines = page(snapshot).splitlines()
    plain, gpu = 'model="digits",version="1"', 'gpu_uuid="GPU-1",model="digits",version="1"'
    for name, without, on_gpu in [
        ("nv_inference_request_success", 0, 5),
        ("nv_inference_count", 0, 9),
        ("nv_inference_exec_count", 0, 2),
        ("nv_inference_request_duration_us", 0, 1234),
        ("nv_inference_queue_duration_us", 0, 234),
        ("nv_inference_compute_input_duration_us", 0, 10),
        ("nv_inference_compute_infer_duration_us", 0, 900),
        ("nv_inference_compute_output_duration_us", 0, 0),
        ("nv_inference_pending_request_count", 7, 0),
        ("nv_model_load_duration_secs", 0.125, 0),
    ]:
        assert f"{name}{{{plain}}} {without}" in lines
        assert f"{name}{{{gpu}}} {on_gpu}" in lines
    for reason, without, on_gpu in [("REJECTED", 1, 0), ("CANCELED", 2, 0), ("BACKEND", 0, 3), ("OTHER", 4, 0)]:
        for labels, count in [('model="digits",', without), ('gpu_uuid="GPU-1",model="digits",', on_gpu)]:
            assert f'nv_inference_request_failure{{{labels}reason="{reason}",version="1"}} {count}' in lines


def test_counters_stay_at_zero_and_durations_are_left_out_without_counter_latencies() -> None:
    text = page(MetricsSnapshot(models=(DIGITS,)), MetricsOptions(config={"counter_latencies": "false"}))
    assert "_duration_us" not in text
    values = {line.split("{")[0]: line.split()[1] for line in text.splitlines() if "{" in line}
    assert values == {
        "nv_inference_request_success": "0",
        "nv_inference_request_failure": "0",
        "nv_inference_count": "0",
        "nv_inference_exec_count": "0",
        "nv_inference_pending_request_count": "7",
        "nv_model_load_duration_secs": "0.125",
        "trident_batch_close_total": "1",
        "trident_inference_cancellations_total": "2",
        "trident_oldest_execution_seconds": "0",
    }


@pytest.mark.parametrize("value", ["False", "0", "true", "", "no"])
def test_only_the_exact_word_switches_counter_latencies_off(value: str) -> None:
    options = MetricsOptions(config={"counter_latencies": value, "unknown": "false"})
    assert page(SNAPSHOT, options) == PAGE


def test_gpu_and_cpu_gauges_can_be_switched_off() -> None:
    assert not any("gpu" in name or "energy" in name for name in families_on(page(SNAPSHOT, MetricsOptions(gpu=False))))
    assert not any("cpu" in name for name in families_on(page(SNAPSHOT, MetricsOptions(cpu=False))))


def test_gpu_families_are_left_out_without_a_gpu() -> None:
    assert not any("gpu" in n or "energy" in n for n in families_on(page(MetricsSnapshot(models=(DIGITS,)))))


def test_downloads_are_shown_after_the_first_one() -> None:
    downloads = DownloadMetrics(bytes=7, objects=2, cache_hits=1, retries=3, seconds=1.5, pending_bytes=4)
    page = render(metric_families(replace(SNAPSHOT, downloads=downloads), MetricsOptions())).decode()
    for line in (
        "trident_repository_downloaded_bytes_total 7",
        "trident_repository_downloaded_objects_total 2",
        "trident_repository_cache_hits_total 1",
        "trident_repository_download_retries_total 3",
        "trident_repository_download_seconds_total 1.5",
        "trident_repository_download_pending_bytes 4",
    ):
        assert line in page.splitlines()
    assert "trident_repository" not in render(metric_families(SNAPSHOT, MetricsOptions())).decode()
