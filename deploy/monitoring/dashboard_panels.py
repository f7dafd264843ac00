"""The rows of panels of the dashboard, with their queries.

`MODEL` and `SERVER` are the filters of the dashboard's variables; a variable set to All also matches series without the
label. A version on a GPU has two series of each metric, so the queries sum the metrics of models.
Source: docs/spec/deploy.md section 8.
"""

from __future__ import annotations

from dataclasses import dataclass

SERVER = 'namespace=~"$namespace",release=~"$release"'
MODEL = f'{SERVER},model=~"$model",version=~"$version"'
RATE = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `queries` are pairs of legend and expression; `unit` is Grafana's name; `width` is in 24ths.

    `kind` is Grafana's: timeseries, stat (one number), table (the current values). `text` is shown on demand.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False
    text: str = ""


def _model_rate(metric: str, by: str = "") -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping}(rate({metric}{{{MODEL}}}{RATE}))"


def _http_rate(by: str, labels: str = "", suffix: str = "count") -> str:
    filters = f"{SERVER},{labels}" if labels else SERVER
    return f"sum by ({by}) (rate(flask_http_request_duration_seconds_{suffix}{{{filters}}}{RATE}))"


def _answers(labels: str = "") -> str:
    """The responses of all routes by status."""
    filters = f"{SERVER},{labels}" if labels else SERVER
    return f"sum by (status) (rate(trident_http_responses_total{{{filters}}}{RATE}))"


def _per_request(metric: str, by: str = "") -> str:
    """The mean duration of a request in seconds."""
    return f"{_model_rate(metric, by)} / {_model_rate('nv_inference_request_success', by)} / 1e6"


def _gpu(metric: str) -> str:
    return f"sum by (instance, gpu_uuid) ({metric}{{{SERVER}}})"


_SUCCESS, _FAILURE = "nv_inference_request_success", "nv_inference_request_failure"
_REQUEST_US, _QUEUE_US = "nv_inference_request_duration_us", "nv_inference_queue_duration_us"
_BUCKETS = "trident_inference_{}_duration_seconds_bucket"
_REQUEST_BUCKETS = _BUCKETS.format("request")
_COUNT, _EXECUTIONS = "nv_inference_count", "nv_inference_exec_count"
_PENDING = "nv_inference_pending_request_count"
_LOAD_SECS = "nv_model_load_duration_secs"
_BY_MODEL = "{{model}}"
_BY_VERSION = "{{model}} {{version}}"
_BY_GPU = "{{instance}} {{gpu_uuid}}"
_OF_MODELS = 'route=~"/models|/models/<model>"'
_LOADED = 'route="/models",method="POST",status="200"'

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Overview",
        (
            Panel("Servers up", "short", (("", f'sum(up{{job=~".*trident.*",{SERVER}}})'),), "stat", 4),
            Panel(
                "Ready versions",
                "short",
                (("", f"count(sum by (model, version) ({_LOAD_SECS}{{{MODEL}}}))"),),
                "stat",
                4,
            ),
            Panel("Requests answered", "reqps", (("", _model_rate(_SUCCESS)),), "stat", 4),
            Panel(
                "Requests failed",
                "percentunit",
                (("", f"{_model_rate(_FAILURE)} / ({_model_rate(_FAILURE)} + {_model_rate(_SUCCESS)})"),),
                "stat",
                4,
            ),
            Panel("Mean duration", "s", (("", _per_request(_REQUEST_US)),), "stat", 4),
            Panel("Requests pending", "short", (("", f"sum({_PENDING}{{{MODEL}}})"),), "stat", 4),
            Panel("Requests", "reqps", ((_BY_MODEL, _model_rate(_SUCCESS, "model")),), width=12),
            Panel(
                "Inferences",
                "short",
                ((_BY_MODEL, _model_rate(_COUNT, "model")),),
                width=12,
                text="Items per second: a request may have a batch of them.",
            ),
        ),
    ),
    (
        "Latency",
        (
            Panel("Mean duration of a request", "s", ((_BY_MODEL, _per_request(_REQUEST_US, "model")),)),
            Panel(
                "99th percentile of a request",
                "s",
                ((_BY_MODEL, f"histogram_quantile(0.99, {_model_rate(_REQUEST_BUCKETS, 'le, model')})"),),
                text="With --metrics-config=histogram_latencies=true.",
            ),
            Panel(
                "99th percentile of a request by part",
                "s",
                tuple(
                    (
                        part,
                        f"histogram_quantile(0.99, {_model_rate(_BUCKETS.format(part), 'le')})",
                    )
                    for part in ("request", "queue", "compute")
                ),
                text="With --metrics-config=histogram_latencies=true. Percentiles of parts do not add up to the whole.",
            ),
            Panel(
                "Duration of a request by part",
                "s",
                tuple(
                    (part.replace("_", " "), _per_request(f"nv_inference_{part}_duration_us"))
                    for part in ("queue", "compute_input", "compute_infer", "compute_output")
                ),
                stacked=True,
                text="Means. The rest of the duration is the time before the queue and after the execution.",
            ),
            Panel(
                "Quantiles of the other routes",
                "s",
                tuple(
                    (f"p{percent}", f"histogram_quantile(0.{percent}, {_http_rate('le', suffix='bucket')})")
                    for percent in (50, 95, 99)
                ),
                text="Metadata, a model's health, repository control, but neither infer requests nor probes.",
            ),
        ),
    ),
    (
        "Queue and batching",
        (
            Panel(
                "Mean batch",
                "short",
                ((_BY_MODEL, f"{_model_rate(_COUNT, 'model')} / {_model_rate(_EXECUTIONS, 'model')}"),),
                width=6,
            ),
            Panel("Requests pending", "short", ((_BY_MODEL, f"sum by (model) ({_PENDING}{{{MODEL}}})"),), width=6),
            Panel("Mean time in the queue", "s", ((_BY_MODEL, _per_request(_QUEUE_US, "model")),), width=6),
            Panel(
                "Share of the time in the queue",
                "percentunit",
                ((_BY_MODEL, f"{_model_rate(_QUEUE_US, 'model')} / {_model_rate(_REQUEST_US, 'model')}"),),
                width=6,
            ),
        ),
    ),
    (
        "Errors",
        (
            Panel(
                "Failed requests by reason", "reqps", (("{{reason}}", _model_rate(_FAILURE, "reason")),), stacked=True
            ),
            Panel("Failed requests by model", "reqps", ((_BY_MODEL, _model_rate(_FAILURE, "model")),), stacked=True),
            Panel(
                "HTTP responses by status",
                "reqps",
                (("{{status}}", _answers()),),
                stacked=True,
                text="Of all routes.",
            ),
            Panel(
                "Other routes: unsuccessful responses",
                "reqps",
                (("{{status}} {{method}} {{route}}", _http_rate("method, route, status", 'status!~"2.."')),),
                stacked=True,
            ),
        ),
    ),
    (
        "Models and versions",
        (
            Panel("Requests", "reqps", ((_BY_VERSION, _model_rate(_SUCCESS, "model, version")),)),
            Panel(
                "Load duration",
                "s",
                (("", f"max by (release, instance, model, version) ({_LOAD_SECS}{{{MODEL}}})"),),
                "table",
            ),
            Panel(
                "Reloads per hour",
                "short",
                ((_BY_VERSION, f"max by (model, version) (changes({_LOAD_SECS}{{{MODEL}}}[1h]))"),),
                text="Without the first load.",
            ),
            Panel(
                "Versions that failed to load",
                "short",
                (
                    (
                        _BY_VERSION,
                        f'sum by (model, version) (trident_model_version_state{{{MODEL},state="UNAVAILABLE"}})',
                    ),
                ),
                width=12,
                text="The number of servers on which the version cannot be loaded.",
            ),
            Panel(
                "Loads per hour",
                "short",
                (
                    (
                        "{{cause}} {{result}}",
                        f"sum by (cause, result) (increase(trident_model_loads_total{{{SERVER}}}[1h]))",
                    ),
                ),
                width=12,
            ),
            Panel(
                "Repository control",
                "reqps",
                (("{{status}} {{route}}", _http_rate("route, status", 'route=~"/v2/repository/.*"')),),
            ),
            Panel(
                "Fetched from cloud storage",
                "Bps",
                (("", f"sum(rate(trident_repository_downloaded_bytes_total{{{SERVER}}}{RATE}))"),),
            ),
            Panel(
                "Objects of models",
                "short",
                (
                    ("fetched", f"sum(trident_repository_downloaded_objects_total{{{SERVER}}})"),
                    ("found in the cache", f"sum(trident_repository_cache_hits_total{{{SERVER}}})"),
                    ("retries", f"sum(trident_repository_download_retries_total{{{SERVER}}})"),
                ),
                width=4,
            ),
            Panel(
                "Still to fetch",
                "bytes",
                (("{{instance}}", f"sum by (instance) (trident_repository_download_pending_bytes{{{SERVER}}})"),),
                width=4,
            ),
        ),
    ),
    (
        "GPU",
        (
            Panel("Utilization", "percentunit", ((_BY_GPU, _gpu("nv_gpu_utilization")),)),
            Panel(
                "Memory",
                "bytes",
                (
                    (f"{_BY_GPU} used", _gpu("nv_gpu_memory_used_bytes")),
                    (f"{_BY_GPU} total", _gpu("nv_gpu_memory_total_bytes")),
                ),
            ),
            Panel(
                "Power",
                "watt",
                (
                    (_BY_GPU, _gpu("nv_gpu_power_usage")),
                    (f"{_BY_GPU} limit", _gpu("nv_gpu_power_limit")),
                    (
                        f"{_BY_GPU} by its energy",
                        f"sum by (instance, gpu_uuid) (rate(nv_energy_consumption{{{SERVER}}}{RATE}))",
                    ),
                ),
            ),
        ),
    ),
    (
        "CPU and memory",
        (
            Panel(
                "CPU utilization of the machine",
                "percentunit",
                (("{{instance}}", f"sum by (instance) (nv_cpu_utilization{{{SERVER}}})"),),
                width=12,
            ),
            Panel(
                "Memory of the machine",
                "bytes",
                (
                    ("{{instance}} used", f"sum by (instance) (nv_cpu_memory_used_bytes{{{SERVER}}})"),
                    ("{{instance}} total", f"sum by (instance) (nv_cpu_memory_total_bytes{{{SERVER}}})"),
                ),
                width=12,
            ),
        ),
    ),
    # Requests of Vertex AI are counted only with the models.
    (
        "Cloud adapters",
        (
            Panel("SageMaker: pings", "reqps", (("{{status}}", _answers('route="/ping"')),), width=6),
            Panel(
                "SageMaker: models loaded",
                "short",
                (("{{instance}}", f"count by (instance) (sum by (instance, model) ({_LOAD_SECS}{{{SERVER}}}))"),),
                width=6,
            ),
            Panel(
                "SageMaker: loads and unloads",
                "reqps",
                (("{{status}} {{method}} {{route}}", _http_rate("method, route, status", _OF_MODELS)),),
                width=6,
                text="507: the platform unloads another model and tries again.",
            ),
            Panel(
                "SageMaker: mean duration of a load",
                "s",
                (
                    (
                        "{{instance}}",
                        f"{_http_rate('instance', _LOADED, 'sum')} / {_http_rate('instance', _LOADED)}",
                    ),
                ),
                width=6,
            ),
        ),
    ),
)
