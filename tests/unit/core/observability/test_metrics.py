"""The metrics page: its families, their options, and its text."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from trident.core.inference.pending_request import CancelCause
from trident.core.inference.request import CloseReason
from trident.core.observability.hardware import CpuReading, GpuReading, HardwareReading
from trident.core.observability.latencies import Exemplar, HistogramMetrics, LatencyMetrics, SummaryMetrics
from trident.core.observability.log import lines_dropped
from trident.core.observability.metrics.families import MetricFamily, Sample, metric_families, number, render
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import (
    BucketUse,
    FailureReason,
    LoadMetrics,
    MetricsOptions,
    MetricsSnapshot,
    ModelMetrics,
    ModelProcessMetrics,
    StatisticsSnapshot,
    VersionStateMetrics,
)

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
STEPS = ("request", "queue", "compute_input", "compute_infer", "compute_output")
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
)
SNAPSHOT = MetricsSnapshot(models=(DIGITS,), hardware=HARDWARE)

SAMPLES = """\
nv_inference_request_success{model="digits",version="1"} 5
nv_inference_request_failure{model="digits",reason="REJECTED",version="1"} 1
nv_inference_request_failure{model="digits",reason="CANCELED",version="1"} 2
nv_inference_request_failure{model="digits",reason="BACKEND",version="1"} 3
nv_inference_request_failure{model="digits",reason="OTHER",version="1"} 4
nv_inference_count{model="digits",version="1"} 9
nv_inference_exec_count{model="digits",version="1"} 2
nv_inference_request_duration_us{model="digits",version="1"} 1234
nv_inference_queue_duration_us{model="digits",version="1"} 234
nv_inference_compute_input_duration_us{model="digits",version="1"} 10
nv_inference_compute_infer_duration_us{model="digits",version="1"} 900
nv_inference_compute_output_duration_us{model="digits",version="1"} 0
nv_inference_pending_request_count{model="digits",version="1"} 7
nv_model_load_duration_secs{model="digits",version="1"} 0.125
trident_batch_close_total{model="digits",reason="idle",version="1"} 1
trident_batch_close_total{model="digits",reason="delay",version="1"} 1
trident_inference_cancellations_total{cause="deadline",model="digits",version="1"} 2
nv_pinned_memory_pool_total_bytes 0
nv_pinned_memory_pool_used_bytes 0
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.25
nv_gpu_utilization{gpu_uuid="GPU-2"} 0
nv_gpu_memory_total_bytes{gpu_uuid="GPU-1"} 80000000000
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 1000000
nv_gpu_power_usage{gpu_uuid="GPU-1"} 90.5
nv_gpu_power_limit{gpu_uuid="GPU-1"} 700
nv_energy_consumption{gpu_uuid="GPU-1"} 12.75
nv_cpu_utilization 0.02255639097744361
nv_cpu_memory_total_bytes 16502972416
nv_cpu_memory_used_bytes 9946726400
trident_oldest_execution_seconds{model="digits",version="1"} 0
"""


def page(snapshot: MetricsSnapshot, options: MetricsOptions | None = None) -> str:
    return render(metric_families(snapshot, options or MetricsOptions())).decode()


def families_on(text: str) -> set[str]:
    return {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}


def test_metrics_page_has_tritons_lines() -> None:
    lines = page(SNAPSHOT).splitlines()
    assert lines[:2] == [
        "# HELP nv_inference_request_success Number of successful inference requests, all batch sizes",
        "# TYPE nv_inference_request_success counter",
    ]
    assert [line for line in lines if not line.startswith(("#", "trident_log_"))] == SAMPLES.splitlines()


def test_the_log_of_the_engine_and_of_this_process_has_a_series_each() -> None:
    (own,) = lines_dropped().items()
    name = "trident_log_lines_dropped_total"
    found = [line for line in page(MetricsSnapshot(lines_dropped={"7": 3})).splitlines() if line.startswith(name)]
    assert found == [f'{name}{{pid="7"}} 3', f'{name}{{pid="{own[0]}"}} {own[1]}']


def test_an_idle_version_has_zeros_and_its_own_labels() -> None:
    lines = [line for line in page(MetricsSnapshot(models=(IDLE,))).splitlines() if not line.startswith("#")]
    own = '_cost_centre="7",_team="a\\"b",model="idle",namespace="/models"'
    assert f'nv_inference_count{{{own},version="3"}} 0' in lines
    assert f'nv_inference_request_failure{{{own},reason="OTHER",version="3"}} 0' in lines
    assert f'nv_model_load_duration_secs{{{own},version="3"}} 2' in lines
    for name, kinds in (("batch_close", CloseReason), ("inference_cancellations", CancelCause)):
        assert len([line for line in lines if line.startswith(f"trident_{name}_total")]) == len(kinds)


def test_processes_of_instances_with_one_name_are_one_series() -> None:
    processes = [ModelProcessMetrics(instance=f"m_{i}", resident_bytes=10, restarts=1) for i in (0, 0, 1)]
    lines = page(MetricsSnapshot(models=(replace(DIGITS, processes=tuple(processes)),))).splitlines()
    labels = [f'{{instance="m_{i}",model="digits",version="1"}}' for i in (0, 1)]
    for name, of_one in (("restarts_total", 1), ("resident_memory_bytes", 10)):
        name = f"trident_model_process_{name}"
        assert [line for line in lines if line.startswith(name)] == [
            f"{name}{labels[0]} {2 * of_one}",
            f"{name}{labels[1]} {of_one}",
        ]


def test_endpoint_pickers_read_the_longest_queue() -> None:
    snapshot = replace(SNAPSHOT, models=(IDLE, DIGITS))
    page = render(metric_families(snapshot, MetricsOptions())).decode()
    (family,) = [each for each in parse(page) if each.name == "nv_inference_pending_request_count"]
    # The rule of llm-d's router: of the series of a family the first with the latest time, and all have none.
    assert (family.samples[0].labels["model"], family.samples[0].value) == ("digits", 7)


def test_each_version_has_one_state_and_loads_are_counted_by_cause_and_result() -> None:
    states = (
        VersionStateMetrics(model="m", version="2", state="READY"),
        VersionStateMetrics(model="bad", version="", state="UNAVAILABLE", namespace="/models"),
    )
    loads = (LoadMetrics(cause="poll", result="failure", count=3),)
    lines = [
        line
        for line in page(MetricsSnapshot(states=states, loads=loads)).splitlines()
        if line.startswith("trident_model_")
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


def test_without_latencies_requests_are_still_counted() -> None:
    snapshot = replace(SNAPSHOT, models=(replace(DIGITS, is_cached=True),))
    options = MetricsOptions(config={"counter_latencies": "false"})
    whole = dict.fromkeys(page(snapshot).splitlines())
    left_out = whole.keys() - page(snapshot, options).splitlines()
    assert {re.split("[ {]", line.removeprefix("# HELP ").removeprefix("# TYPE "))[0] for line in left_out} == {
        *(f"nv_inference_{step}_duration_us" for step in STEPS),
        "nv_cache_hit_duration_per_model",
        "nv_cache_miss_duration_per_model",
    }


def test_gpu_and_cpu_gauges_can_be_disabled() -> None:
    assert not any("gpu" in name or "energy" in name for name in families_on(page(SNAPSHOT, MetricsOptions(gpu=False))))
    assert not any("cpu" in name for name in families_on(page(SNAPSHOT, MetricsOptions(cpu=False))))
    assert not any("gpu" in n or "energy" in n for n in families_on(page(MetricsSnapshot(models=(DIGITS,)))))


def test_bucket_series_are_labelled_with_batch_size_and_length() -> None:
    rows, lengths = ModelStatistics(), ModelStatistics()
    rows.record_bucket(BucketUse(4, 0, 6, 2))
    lengths.record_bucket(BucketUse(0, 16, 12, 4))
    models = tuple(
        ModelMetrics(model=name, version=1, statistics=statistics.snapshot(), load_duration_secs=1.0)
        for name, statistics in (("a", rows), ("b", lengths), ("c", ModelStatistics()))
    )
    found = metric_families(MetricsSnapshot(models=models), MetricsOptions())
    executions, elements, padding = [family for family in found if family.name.startswith("trident_bucket_")]
    by_rows = {"model": "a", "version": "1", "batch_size": "4"}
    by_length = {"model": "b", "version": "1", "length": "16"}
    assert executions.samples == (Sample(by_rows, 1), Sample(by_length, 1))
    assert elements.samples == (Sample(by_rows, 6), Sample(by_length, 12))
    assert padding.samples == (Sample(by_rows, 2), Sample(by_length, 4))


EXEMPLAR = Exemplar(request_id="frame 7", value=0.09, timestamp=1_700_000_000.5)
LATENCIES = LatencyMetrics(
    histograms=(
        HistogramMetrics(
            name="nv_inference_first_response_histogram_ms",
            bounds=(100.0, 500.0),
            counts=(1, 2, 3),
            sum=405,
            exemplars=(None, None, None),
        ),
        HistogramMetrics(
            name="trident_inference_queue_duration_seconds",
            bounds=(0.1, 1.0),
            counts=(1, 0, 4),
            sum=2.5,
            exemplars=(EXEMPLAR, None, None),
        ),
    ),
    summaries=(
        SummaryMetrics(
            name="nv_inference_queue_summary_us", quantiles=((0.5, 12.5), (0.999, math.nan)), sum=77, count=5
        ),
    ),
)
MODEL = ModelMetrics(
    model="m",
    version=1,
    statistics=ModelStatistics().snapshot(),
    load_duration_secs=1.0,
    gpu_uuid="GPU-1",
    latencies=LATENCIES,
)


def distributions(model: ModelMetrics) -> list[MetricFamily]:
    found = metric_families(MetricsSnapshot(models=(model,)), MetricsOptions())
    return [family for family in found if family.type in ("histogram", "summary")]


def test_parsers_of_both_formats_read_the_page() -> None:
    names = {
        "nv_inference_first_response_histogram_ms": "histogram",
        "trident_inference_queue_duration_seconds": "histogram",
        "nv_inference_queue_summary_us": "summary",
    }
    families = list(parse(render(distributions(MODEL)).decode()))
    assert {family.name: family.type for family in families} == names
    page = render(distributions(MODEL), openmetrics=True).decode() + "# EOF\n"
    found = {family.name: family for family in parse_openmetrics(page)}
    assert {name: family.type for name, family in found.items()} == names
    (exemplar,) = [
        sample.exemplar for family in found.values() for sample in family.samples if sample.exemplar is not None
    ]
    assert (exemplar.labels, exemplar.value, float(exemplar.timestamp)) == (
        {"request_id": EXEMPLAR.request_id},
        EXEMPLAR.value,
        EXEMPLAR.timestamp,
    )


def lines(*families: MetricFamily) -> list[str]:
    page = render(families).decode()
    assert page == "" or page.endswith("\n")
    return page.splitlines()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-3, "-3"),
        (12.0, "12"),
        (16502972416.0, "16502972416"),
        (2**63 + 1, "9223372036854775809"),
        (0.1, "0.1"),
        (0.022556390977443608, "0.02255639097744361"),
        (1 / 3, "0.3333333333333333"),
        (1e17, "1e+17"),
        (math.nan, "Nan"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
    ],
)
def test_numbers_are_written_as_triton_writes_them(value: int | float, text: str) -> None:
    assert number(value) == text


def test_openmetrics_has_unknown_type_for_contradicting_names() -> None:
    labels = {"model": 'Ünï "code" \\ \n', "version": "1"}
    page = render(
        [
            MetricFamily("nv_requests", "counter", 'How "many"', (Sample(labels, 7),)),
            MetricFamily("trident_errors_total", "counter", "How many", (Sample({}, 3),)),
            MetricFamily("level", "gauge", "How high", (Sample({}, math.nan),)),
            MetricFamily("some", "untyped", "What", (Sample({}, 1),)),
            MetricFamily("none", "gauge", "Nothing", ()),
        ],
        openmetrics=True,
    ).decode()
    families = list(parse_openmetrics(page + "# EOF\n"))
    assert [(family.name, family.type) for family in families] == [
        ("nv_requests", "unknown"),
        ("trident_errors", "counter"),
        ("level", "gauge"),
        ("some", "unknown"),
    ]
    names = [sample.name for family in families for sample in family.samples]
    assert names == ["nv_requests", "trident_errors_total", "level", "some"]
    assert families[0].samples[0].labels == labels
    assert families[0].documentation == 'How "many"'
