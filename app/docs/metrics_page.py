"""docs/metrics.md, made from the metric families themselves: `python -m app.docs.metrics_page > docs/metrics.md`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from core.observability.hardware.cpu_meter import CpuReading
from core.observability.hardware.gauges import HardwareReading
from core.observability.hardware.gpu_meter import GpuReading
from core.observability.metrics.exposition import MetricFamily
from core.observability.metrics.families import metric_families
from core.observability.metrics.options import MetricsOptions
from core.observability.metrics.snapshot import DownloadMetrics, MetricsSnapshot, ModelMetrics
from core.observability.statistics import FailureReason, ModelStatistics


class Row(NamedTuple):
    """One family: `labels` are those that each of its series has."""

    name: str
    type: str
    labels: tuple[str, ...]
    meaning: str


_HEAD = """\
# Metrics

Made from `core/observability/metrics/families.py`; do not edit it here.

`GET /metrics` on the metrics port (`--metrics-port`, 8002), on SageMaker's port and, where `--public-routes` has
`metrics`, on Vertex AI's answers in the Prometheus text format, under Triton's names. Nothing is counted for it on the
way of an infer request: the page is made from the models' statistics when it is asked for. A *request* is a call, an
*inference* one item of its batch, an *execution* one run of the model over all that was batched.

A dashboard and alert rules over these metrics are in `deploy/monitoring`. Durations are sums: the mean over five
minutes is `rate(nv_inference_request_duration_us[5m]) / rate(nv_inference_request_success[5m])`. Triton's summaries,
its histogram and its metrics of the response cache are not there.
"""
_SECTIONS = {
    "nv_inference_": """\
## Models

Of each ready model version. Beside the labels below, these have

* `gpu_uuid` where the version runs on a GPU. There is a series without it, too, and the two add up: what happens before
  an execution is counted on the one, the execution on the other.
* `namespace` with `--model-namespacing=true`.
* the `metric_tags` of the model configuration, with an underscore before their names.

`--metrics-config=counter_latencies=false` leaves the durations out and, as in Triton, keeps the counters at 0.
Counters start at 0 when a version is loaded again. A request that was refused before it was queued (malformed, model
not ready, queue full) is in none of them; the log has it.
""",
    "trident_repository_": """\
## Model repositories

Of those in cloud storage, from the first time that one is asked.
""",
    "nv_": """\
## Machine

Read every `--metrics-interval-ms`; `--allow-cpu-metrics=false` and `--allow-gpu-metrics=false` leave them out.
""",
    "flask_": """\
## HTTP requests

Of all routes but the infer routes, whose requests are counted with their models, and Vertex AI's two: of health,
metadata, repository control, `/ping`, `/models`. `route` is the route's pattern, empty for a path that has none. Where
one process does all (`--http-workers=0`) a page shows the requests of one port, SageMaker's page those of its own, and
has a `_created` gauge with the time of the first request beside each of these.
""",
}
_PREFIXES = {"nv_model_": "nv_inference_"}
# What the texts of the page itself, which are Triton's, leave out.
NOTES = {
    "nv_inference_request_failure": f"`reason` is one of {', '.join(reason.value for reason in FailureReason)}",
    "nv_inference_count": "over `nv_inference_exec_count`: the mean batch",
    "nv_inference_request_duration_us": "from the request to its response; only of those that succeeded, as all below",
    "nv_inference_compute_input_duration_us": "gathering the inputs of a batch",
    "nv_inference_compute_infer_duration_us": "running the model",
    "nv_inference_compute_output_duration_us": "cutting the outputs of a batch apart",
    "nv_inference_pending_request_count": "what to scale on",
    "nv_model_load_duration_secs": "there is one series for each ready version; its value changes with each load",
    "nv_pinned_memory_pool_total_bytes": "always 0: there is no such pool",
    "nv_pinned_memory_pool_used_bytes": "always 0",
    "nv_gpu_utilization": "GPU metrics are those of the driver, of the GPUs that the server may use",
}
_HTTP = (
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
        "Requests that ended in an error which nobody expected",
    ),
    Row("flask_exporter_info", "gauge", ("version",), "Always 1; the version of the library that counts these"),
)

_CPU = CpuReading(utilization=0.5, memory_total=2, memory_used=1)
_GPU = GpuReading(
    uuid="GPU-0", utilization=0.5, memory_total=2, memory_used=1, power_usage=1.0, power_limit=2.0, energy=1.0
)
MODEL = ModelMetrics(model="simple", version=1, statistics=ModelStatistics().snapshot(), load_duration_secs=0.1)
"""A model version without any of the labels that not all have."""


def metrics_page() -> str:
    """The whole page, in Markdown."""
    parts = [_HEAD]
    sections: dict[str, list[Row]] = {prefix: [] for prefix in _SECTIONS}
    for row in metric_rows():
        sections[_section(row.name)].append(row)
    for prefix, rows in sections.items():
        lines = "".join(_line(row) for row in rows)
        parts.append(f"{_SECTIONS[prefix]}\n| name | type | labels | meaning |\n|---|---|---|---|\n{lines}")
    return "\n".join(parts)


def metric_rows() -> list[Row]:
    """Every family that the server can show, in the order of its page."""
    return [*(_row(family) for family in families_of(MODEL)), *_HTTP]


def families_of(model: ModelMetrics) -> list[MetricFamily]:
    """All families of a server with this model, a GPU, and a repository in cloud storage."""
    snapshot = MetricsSnapshot(
        models=(model,), hardware=HardwareReading(cpu=_CPU, gpus=(_GPU,)), downloads=DownloadMetrics()
    )
    return list(metric_families(snapshot, MetricsOptions()))


def _row(family: MetricFamily) -> Row:
    note = NOTES.get(family.name)
    meaning = f"{family.help.rstrip('.')}; {note}" if note else family.help.rstrip(".")
    return Row(family.name, family.type, label_names(family), meaning)


def label_names(family: MetricFamily) -> tuple[str, ...]:
    """Of all its series."""
    return tuple(sorted({name for sample in family.samples for name in sample.labels}))


def _section(name: str) -> str:
    for prefix, section in _PREFIXES.items():
        if name.startswith(prefix):
            return section
    return next(prefix for prefix in _SECTIONS if name.startswith(prefix))


def _line(row: Row) -> str:
    return f"| `{row.name}` | {row.type} | {_code(row.labels)} | {row.meaning} |\n"


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(metrics_page(), end="")
