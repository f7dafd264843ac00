from __future__ import annotations

import math
import pickle
from dataclasses import replace

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from trident.core.observability.latencies import (
    CACHE_SUMMARIES,
    Exemplar,
    HistogramMetrics,
    LatencyMeters,
    LatencyMetrics,
    SummaryMetrics,
)
from trident.core.observability.latency_options import DEFAULT_BUCKETS, LatencyOptions
from trident.core.observability.metrics.exposition import render
from trident.core.observability.metrics.families import latency_families
from trident.core.observability.metrics.snapshot import ModelMetrics
from trident.core.observability.model_statistics import ModelStatistics

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


def test_the_page_has_triton_s_names_and_labels() -> None:
    page = render(latency_families([MODEL], has_cache=True)).decode()
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    label = 'model="m",version="1"'
    assert lines == [
        f'nv_inference_first_response_histogram_ms_bucket{{{label},le="100"}} 1',
        f'nv_inference_first_response_histogram_ms_bucket{{{label},le="500"}} 3',
        f'nv_inference_first_response_histogram_ms_bucket{{{label},le="+Inf"}} 6',
        f"nv_inference_first_response_histogram_ms_count{{{label}}} 6",
        f"nv_inference_first_response_histogram_ms_sum{{{label}}} 405",
        f'trident_inference_queue_duration_seconds_bucket{{{label},le="0.1"}} 1',
        f'trident_inference_queue_duration_seconds_bucket{{{label},le="1"}} 1',
        f'trident_inference_queue_duration_seconds_bucket{{{label},le="+Inf"}} 5',
        f"trident_inference_queue_duration_seconds_count{{{label}}} 5",
        f"trident_inference_queue_duration_seconds_sum{{{label}}} 2.5",
        f'nv_inference_queue_summary_us{{{label},quantile="0.5"}} 12.5',
        f'nv_inference_queue_summary_us{{{label},quantile="0.999"}} Nan',
        f"nv_inference_queue_summary_us_count{{{label}}} 5",
        f"nv_inference_queue_summary_us_sum{{{label}}} 77",
    ]


def test_parsers_of_both_formats_read_the_page() -> None:
    names = {
        "nv_inference_first_response_histogram_ms": "histogram",
        "trident_inference_queue_duration_seconds": "histogram",
        "nv_inference_queue_summary_us": "summary",
    }
    families = list(parse(render(latency_families([MODEL], has_cache=True)).decode()))
    assert {family.name: family.type for family in families} == names
    page = render(latency_families([MODEL], has_cache=True), openmetrics=True).decode() + "# EOF\n"
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


def test_a_version_without_distributions_has_no_series() -> None:
    plain = ModelMetrics(model="m", version=1, statistics=ModelStatistics().snapshot(), load_duration_secs=1.0)
    assert render(latency_families([plain], has_cache=True)) == b""
    assert pickle.loads(pickle.dumps(plain)) == plain


def test_without_a_cache_there_are_no_summaries_of_it() -> None:
    statistics = ModelStatistics()
    statistics.measure(LatencyMeters(LatencyOptions(summaries=True), DEFAULT_BUCKETS))
    model = replace(MODEL, latencies=statistics.latencies(1))
    names = [family.name for family in latency_families([model], has_cache=True) if family.samples]
    assert [name for name in names if name.startswith("nv_cache_")] == list(CACHE_SUMMARIES)
    without = [family.name for family in latency_families([model], has_cache=False) if family.samples]
    assert without == [name for name in names if name not in CACHE_SUMMARIES]
