"""Generates docs/metrics.md from the metric families: `python -m trident.app.docs.metrics_page > docs/metrics.md`."""

from __future__ import annotations

import re
from typing import NamedTuple

from trident.core.inference.pending_request import CancelCause
from trident.core.observability.hardware import CpuReading, GpuReading, HardwareReading
from trident.core.observability.latencies import LatencyMeters
from trident.core.observability.latency_options import DEFAULT_BUCKETS, FIRST_RESPONSE, REQUEST, LatencyOptions
from trident.core.observability.metrics.exposition import MetricFamily
from trident.core.observability.metrics.families import log_family, metric_families
from trident.core.observability.metrics.snapshot import (
    DeviceMemoryMetrics,
    DownloadMetrics,
    LoadMetrics,
    MetricsOptions,
    MetricsSnapshot,
    ModelMetrics,
    ModelProcessMetrics,
    RemoteCacheMetrics,
    ResourceMetrics,
    ResponseCacheMetrics,
    VersionStateMetrics,
)
from trident.core.observability.metrics_report import FIGURES
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import BatchTuning, BucketUse, FailureReason
from trident.core.observability.tracing.trace import TraceCounts


class Row(NamedTuple):
    """One family; each of its series has `labels`."""

    name: str
    type: str
    labels: tuple[str, ...]
    meaning: str


_HEAD = """\
# Metrics

Generated from `core/observability/metrics/families.py`; do not edit it.

```bash
curl localhost:8002/metrics
```

The page is on the metrics port, on SageMaker's port and, if `--public-routes` has `metrics`, on Vertex AI's, in
Prometheus' format with Triton's names. A *request* is a call, an *inference* an item of its batch, an *execution* one
run of the model.

`deploy/monitoring` has a dashboard and alert rules. Durations are sums: the mean of five minutes is
`rate(nv_inference_request_duration_us[5m]) / rate(nv_inference_request_success[5m])`. For the slowest requests switch
the [distributions](#distributions-of-durations) on.
"""
_SECTIONS = {
    "nv_inference_": """\
## Models

For each ready model version. Further labels are

* `gpu_uuid` on a GPU. A second series without it counts what happens before an execution: add the two up.
* `namespace` with `--model-namespacing=true`.
* the `metric_tags` of the configuration, with an underscore before their names.

Durations of requests and of the queue include requests answered by the cache; the others and `nv_inference_count` do
not. `--metrics-config=counter_latencies=false` leaves durations out and, as in Triton, keeps counters at 0. Counters
restart when a version is loaded again. A request refused before the queue is only in `trident_http_errors_total`.
""",
    "latencies": """\
## Distributions of durations

`--metrics-config=histogram_latencies=true` adds histograms (0.7 µs a request, 0.4 in batches of eight),
`summary_latencies=true` summaries (1.1 µs, 0.4). `curl HOST:8000/v2/logging -d '{"histogram_latencies": true}'`
switches the histograms of a running server. The 99th percentile over all servers:

```text
histogram_quantile(0.99, sum by (le, model) (rate(trident_inference_request_duration_seconds_bucket[5m])))
```

A model chooses its buckets in its configuration:

```text
model_metrics {
  metric_control: [ {
    metric_identifier { family: "trident_inference_request_duration_seconds" }
    histogram_options { buckets: [ 0.02, 0.05, 0.1, 0.2 ] }
  } ]
}
```

Quantiles of a summary are those of the last 48 to 60 seconds, within one percent, `Nan` without requests, and cannot be
added up. `--metrics-config=summary_quantiles=0.5:0.05,0.99:0.001` chooses them; the permitted errors have no effect.

**Exemplars.** A scraper that asks for OpenMetrics, as Prometheus does with `--enable-feature=exemplar-storage`, gets
the latest request id of each bucket, up to 118 characters, as `request_id`.
""",
    "trident_oldest_": """\
## Executions that run

A model that hangs is `READY` without errors: alert on this gauge. The log names instance, process and requests after
10 s, 20 s, 40 s and so on.
""",
    "trident_bucket_": """\
## Batch buckets

For models that pad to [buckets](ragged-batching.md#batch-buckets). `batch_size` is the bucket's rows, `length` its
length. The share of padding:

```text
sum by (model) (rate(trident_bucket_padding_elements_total[5m]))
  / sum by (model) (rate(trident_bucket_elements_total[5m]) + rate(trident_bucket_padding_elements_total[5m]))
```
""",
    "trident_model_process_": """\
## Processes of models

For Python models.
""",
    "trident_model_memory_": """\
## Memory of GPUs

As the [ledger](gpu.md#memory) has it. `device` is such as `gpu:0`, as the models' process sees it.
""",
    "trident_model_": """\
## Loads

A version that failed is `UNAVAILABLE` until it loads or is no longer wanted; an unloaded one has no series. A model
without versions has an empty `version`.
""",
    "trident_response_cache_": """\
## Response cache

For a [response cache](response-cache.md) in memory size, memory, entries and evictions; for one in Redis `up` and
faults. A request that waits for the answer to an equal one is a hit.
""",
    "trident_trace_": """\
## Tracing

For servers that can [trace](tracing.md).
""",
    "trident_log_": """\
## Log

Nothing that serves waits for the log: lines are dropped and counted instead.
""",
    "trident_resource_": """\
## Resources

For a [rate limiter](rate-limiter.md). `device` is 0 for the CPU and empty for a global resource. Waiting requests are
in `nv_inference_pending_request_count`.
""",
    "trident_repository_": """\
## Model repositories

Downloads from cloud storage.
""",
    "nv_": """\
## Machine

Read every `--metrics-interval-ms`; `--allow-cpu-metrics=false` and `--allow-gpu-metrics=false` leave them out.
""",
    "flask_": """\
## HTTP requests

The `trident_http_` counters cover all routes; what is not HTTP (408, 413, 431 …) is only in the log. The others cover
the routes of Flask: metadata, a model's health, repository control, `/models`.

`route` is the pattern without the version, empty without a route, on Vertex AI `health` or `predict`. A readiness probe
that is answered 400 or 503 is no error. In one process a page shows one port and has `_created` gauges; front ends show
all.
""",
    "trident_grpc_": """\
## gRPC calls

`method` is such as `ModelInfer`, empty for an unknown one; `status` is gRPC's, CANCELLED if the client left. A stream
counts once; its failed requests are in `nv_inference_request_failure`.
""",
}
_CUSTOM = """\
## Metrics of models

A Python model may make its own metrics (`pb_utils.MetricFamily`). Same name and labels are one series; it leaves the
page with its last `Metric` object or process. Names are Prometheus', not those above, and without the prefixes
`trident_` and `flask_`. `--metrics-log` leaves them out.
"""
_LOG = """\
## Metrics in the log

`--metrics-log=emf` writes metrics to stdout every `--metrics-log-interval-secs` (60) in CloudWatch's embedded metric
format, `--metrics-log=gcp` as entries for Cloud Logging. See [SageMaker](sagemaker.md#metrics-of-the-server) and
[Vertex AI](vertex.md#metrics-of-the-server). A line costs a scrape.

There is a line for the server and one for each serving model, the sum of its versions, also if nothing happened.
Counts are those of the interval. Durations are milliseconds and missing without requests; percentiles need
`--metrics-config=histogram_latencies=true`. In the last line before a stop `ready` is 0. `--metrics-log-namespace` is
CloudWatch's namespace. `--metrics-log-dimension=endpoint=my-endpoint` (repeatable) adds a dimension or label beside
`model`. CloudWatch bills each metric of each model.
"""
_PREFIXES = {
    "nv_cache_": "trident_response_cache_",
    "nv_model_": "nv_inference_",
    "trident_batch_": "nv_inference_",
    "trident_inference_cancellations_": "nv_inference_",
    "trident_http_": "flask_",
}
# Additions to the help texts, which are Triton's.
NOTES = {
    "nv_inference_request_failure": f"`reason` is one of {', '.join(reason.value for reason in FailureReason)}",
    "nv_inference_count": "over `nv_inference_exec_count`: the mean batch size",
    "nv_inference_request_duration_us": "like all durations, of successful ones",
    "nv_inference_compute_input_duration_us": "gathering the inputs of a batch",
    "nv_inference_compute_infer_duration_us": "running the model",
    "nv_inference_compute_output_duration_us": "splitting the outputs of a batch",
    "nv_inference_pending_request_count": "use it for autoscaling",
    "nv_model_load_duration_secs": "of each ready version",
    "trident_batch_target_p99_seconds": "only with [a target](tuning.md#a-target-instead-of-a-delay), as the next two",
    "trident_batch_close_total": "[what the reasons mean](tuning.md#why-was-this-batch-closed)",
    "trident_inference_cancellations_total": f"`cause` is one of {', '.join(cause.value for cause in CancelCause)}: "
    "[what they mean](http.md#requests-that-are-given-up)",
    "trident_model_version_state": "`state` is one of LOADING, READY, UNLOADING, UNAVAILABLE",
    "trident_model_loads_total": "`cause` is one of start, poll, request, `result` one of success, failure, "
    "out_of_memory; a model counts once",
    FIRST_RESPONSE: "whole milliseconds, also of failed requests; by default 100, 500, 2000 and 5000",
    REQUEST: "by default 16 bounds from 0.0001 to 10, as the next two",
    "nv_cache_miss_duration_per_model": "looking up, and keeping the answer",
    "trident_trace_lost_total": "`reason` is one of queue_full (a slow disk or collector), not_written",
    "trident_log_lines_dropped_total": "more than 256 KiB waited for the reader, or the disk is full",
    "trident_response_cache_faults_total": "`kind` is one of late (no answer within the budget), left_out (gone or "
    "slow, not asked), lost (the connection broke), damaged (no answer of this server) and unwritten",
    "nv_pinned_memory_pool_total_bytes": "always 0: this server has no such pool",
    "nv_pinned_memory_pool_used_bytes": "always 0",
    "nv_gpu_utilization": "GPU metrics are read from the driver, for the GPUs that the server may use",
}
_HTTP = (
    Row(
        "trident_http_errors_total",
        "counter",
        ("method", "route", "status"),
        "Responses with an error, of all routes; a series appears with its first",
    ),
    Row(
        "trident_http_responses_total",
        "counter",
        ("method", "route", "status"),
        "Responses of all routes; a series appears with its first",
    ),
    Row(
        "flask_http_request_duration_seconds",
        "histogram",
        ("method", "route", "status"),
        "Seconds from a request to its response, on the server",
    ),
    Row("flask_http_request_total", "counter", ("method", "status"), "Requests"),
    Row(
        "flask_http_request_exceptions_total",
        "counter",
        ("method", "status"),
        "Requests that ended in an unexpected error",
    ),
    Row("flask_exporter_info", "gauge", ("version",), "Always 1; `version` is that of the library that counts these"),
)
_GRPC = Row(
    "trident_grpc_responses_total",
    "counter",
    ("method", "status"),
    "Calls over gRPC that have ended; a stream counts once",
)

_CPU = CpuReading(utilization=0.5, memory_total=2, memory_used=1)
_GPU = GpuReading(
    uuid="GPU-0", utilization=0.5, memory_total=2, memory_used=1, power_usage=1.0, power_limit=2.0, energy=1.0
)
_LATENCIES = LatencyMeters(LatencyOptions(histograms=True, summaries=True), DEFAULT_BUCKETS)
_STATISTICS = ModelStatistics()
_STATISTICS.measure(_LATENCIES)
_STATISTICS.record_bucket(BucketUse(1, 1, 1, 1))
_STATISTICS.note_tuning(BatchTuning(target_p99_ns=3, delay_ns=2, max_size=1))
MODEL = ModelMetrics(
    model="simple",
    version=1,
    statistics=_STATISTICS.snapshot(),
    load_duration_secs=0.1,
    latencies=_STATISTICS.latencies(1),
    processes=(ModelProcessMetrics(instance="simple_0", resident_bytes=1, restarts=0),),
    memory=(DeviceMemoryMetrics(device="gpu:0", gpu_uuid="GPU-0", bytes=1),),
)
"""A model version without the optional labels."""


def metrics_page() -> str:
    """The whole page, in Markdown."""
    parts = [_HEAD]
    sections: dict[str, list[Row]] = {prefix: [] for prefix in _SECTIONS}
    for row in metric_rows():
        sections[_section(row)].append(row)
    for prefix, rows in sections.items():
        lines = "".join(_line(row) for row in rows)
        parts.append(f"{_SECTIONS[prefix]}\n{lines}")
    parts.append(_CUSTOM)
    figures = "".join(f"* `{name}`: {each.text}\n" for name, each in FIGURES.items())
    parts.append(f"{_LOG}\n{figures}")
    return "\n".join(parts)


def metric_rows() -> list[Row]:
    """Every family that the server can show, in the order of its page."""
    return [*(_row(family) for family in families_of(MODEL)), *_HTTP, _GRPC]


def families_of(model: ModelMetrics) -> list[MetricFamily]:
    """All families of a server with this model, a GPU, and a repository in cloud storage."""
    snapshot = MetricsSnapshot(
        models=(model,),
        states=(VersionStateMetrics(model=model.model, version=str(model.version), state="READY"),),
        loads=(LoadMetrics(cause="start", result="success", count=1),),
        hardware=HardwareReading(cpu=_CPU, gpus=(_GPU,)),
        downloads=DownloadMetrics(),
        response_cache=ResponseCacheMetrics(size=2, used=1, entries=1, evictions=0),
        remote_cache=RemoteCacheMetrics(is_up=True, faults={"late": 0}),
        traces=TraceCounts().metrics(),
        resources=(ResourceMetrics(resource="r", device="0", limit=1, held=1, waiting=0),),
    )
    return [*metric_families(snapshot, MetricsOptions()), log_family()]


def _row(family: MetricFamily) -> Row:
    note = NOTES.get(family.name)
    text = re.sub(r" \((?:includes|does not include) cached requests\)", "", family.help).rstrip(".")
    meaning = f"{text}; {note}" if note else text
    return Row(family.name, family.type, label_names(family), meaning)


def label_names(family: MetricFamily) -> tuple[str, ...]:
    """The labels of all its series, without those of buckets and quantiles."""
    return tuple(sorted({name for sample in family.samples for name in sample.labels} - {"le", "quantile"}))


def _section(row: Row) -> str:
    if "_inference_" in row.name and row.type in ("histogram", "summary"):
        return "latencies"
    for prefix, section in _PREFIXES.items():
        if row.name.startswith(prefix):
            return section
    return next(prefix for prefix in _SECTIONS if row.name.startswith(prefix))


def _line(row: Row) -> str:
    labels = f"{{{','.join(row.labels)}}}" if row.labels else ""
    return f"* `{row.name}{labels}`, {row.type}: {row.meaning}.\n"


if __name__ == "__main__":
    print(metrics_page(), end="")
