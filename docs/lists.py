"""The lists of the documents that are made from the source: metrics, settings, Triton's options,
and what the routes of text models read; and the lines of files that docs/reading.md names.

`python -m docs.lists` writes each between the comments with its name, `<!-- NAME: begin -->` and `<!-- NAME: end -->`.
Source of Triton's options: docs/spec/server-options.md section 2.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from trident.adapters.common.options import Option
from trident.app.settings.groups import UNUSED_OPTIONS
from trident.app.settings.server import SERVER_OPTIONS
from trident.core.backends.text.folder import TaskName
from trident.core.backends.text.tasks import TASKS
from trident.core.http import completions, text_generation
from trident.core.http.text_routes import COUNTS, EMBEDDING, LABELS, MEMBERS, NEUTRAL, PIPELINE, SCORES
from trident.core.inference.pending_request import CancelCause
from trident.core.lifecycle.demand import Reason
from trident.core.observability.hardware import CpuReading, GpuReading, HardwareReading
from trident.core.observability.latencies import LatencyMeters
from trident.core.observability.metrics.families import MetricFamily, metric_families
from trident.core.observability.metrics_log import FIGURES
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import (
    BatchTuning,
    BucketUse,
    DemandMetrics,
    DeviceMemoryMetrics,
    DownloadMetrics,
    FailureReason,
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
from trident.core.observability.tracing.trace import TraceCounts
from trident.core.options import DEFAULT_BUCKETS, FIRST_RESPONSE, REQUEST, LatencyOptions

DOCS = Path(__file__).parent


def pages() -> dict[Path, str]:
    """The text that each page must have."""
    names = ("metrics", "coming-from-triton", "spec/text-models", "reading")
    metrics, triton, texts, reading = (DOCS / f"{name}.md" for name in names)
    return {
        metrics: _filled(metrics, {**_metrics(_note), "figures": _figures()}),
        triton: _filled(triton, {"options": _tritons()}),
        texts: _filled(texts, {"members": _members()}),
        reading: _with_lines(reading.read_text()),
    }


def _filled(page: Path, lists: dict[str, str]) -> str:
    text = page.read_text()
    if set(re.findall("<!-- (.+): begin -->", text)) != lists.keys():
        raise ValueError(f"{page.name} must have a place for each of {', '.join(lists)}, and for no other list")
    return _fill(text, lists)


def _fill(text: str, lists: dict[str, str]) -> str:
    for name, content in lists.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        text = f"{text.partition(begin)[0]}{begin}\n{content}\n{end}{text.partition(end)[2]}"
    return text


# --- the lines of the server's centre


def _with_lines(page: str) -> str:
    """`page` with the lines of each file, where they are off by more than a tenth."""

    def row(found: re.Match[str]) -> str:
        lines = (DOCS.parent / found[1]).read_text().count("\n")
        written = int(found[2].replace(",", ""))
        return found[0] if abs(lines - written) <= written / 10 else f"| `{found[1]}` | {lines:,} |"

    return re.sub(r"^\| `([^`]+\.py)` \| ([\d,]+) \|", row, page, flags=re.MULTILINE)


# --- routes of text models


# What tells the routes of these tasks which parameters they read.
READ_BY_ROUTES = {
    TaskName.FEATURE_EXTRACTION: EMBEDDING,
    TaskName.TEXT_CLASSIFICATION: SCORES,
    TaskName.ZERO_SHOT_CLASSIFICATION: LABELS,
}
GENERATION_OPTIONS = DOCS.parent / "core" / "backends" / "stub_models" / "genai_model.py"


def generation_options() -> dict[str, Any]:
    """The tables of options of the process that generates text, which imports what not every checkout has."""
    found = {}
    for node in ast.parse(GENERATION_OPTIONS.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("_KNOWN", "_WITHOUT_EFFECT", "_UNSUPPORTED"):
                found[name] = ast.literal_eval(node.value)
    return found


def _members() -> str:
    options = generation_options()
    others = "all others are [options](../text-models.md#generating-text) of the model"
    rows = [(f"`{route}`", f"{_quoted(names)}; {others}", "") for route, names in completions.MEMBERS.items()]
    rows.append(
        (
            "options of ONNX Runtime GenAI",
            f"{_quoted(options['_KNOWN'])}; without effect on the text: {_quoted(options['_WITHOUT_EFFECT'])}",
            ", ".join(f"`{name}` ({_json(value)})" for name, value in sorted(options["_UNSUPPORTED"].items())),
        )
    )
    names = _quoted({*text_generation.MEMBERS, *text_generation.NAMES})
    refused = f"{_quoted(text_generation.ONLY_AS_INPUT)}, unless the model has such an input"
    rows.append(
        ("pipeline `text-generation`", f"`inputs`, `model`, `stream`, {names}, and the options of the model", refused)
    )
    documents = ", `/v2/rerank`, `/rerank` with `documents`"
    rows += [
        (f"`{route}`{documents if 'documents' in names else ''}", _quoted(names), "")
        for route, names in MEMBERS.items()
    ]
    for task, kind in TASKS.items():
        own: Mapping[str, Callable[[Any], Any]] = kind.options
        read = PIPELINE.get(READ_BY_ROUTES.get(task, ""), ())
        shown = {**dict.fromkeys(read, ""), **{name: _values(reader) for name, reader in own.items()}}
        rows.append((f"pipeline `{task.value}`", ", ".join(f"`{name}`{shown[name]}" for name in sorted(shown)), ""))
    neutral = [f"`{name}` ({', '.join(map(_json, values))})" for name, values in NEUTRAL.items()]
    neutral.append(_quoted(COUNTS))
    rows.append(("every pipeline", f"`inputs`, `model`, `parameters`; without effect: {', '.join(neutral)}", ""))
    head = ["| route | honoured | refused, unless it asks for nothing |", "|---|---|---|"]
    return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows), ""])


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _json(value: Any) -> str:
    return f"`{json.dumps(value)}`"


def _values(reader: Callable[[Any], Any]) -> str:
    """The values that an option may have, where it names them."""
    try:
        reader(None)
    except ValueError as error:
        kind, _, known = str(error).partition("one of ")
        return f" ({known})" if known and not kind else ""
    return ""


# --- settings


def every_setting() -> str:
    """Every option, as `trident serve --help=all` prints them; `docs/site_hooks.py` adds them to the site's page."""
    sections = groupby(SERVER_OPTIONS.values(), key=lambda each: each.section)
    return "\n".join(f"## {section}\n\n{''.join(map(_setting, options))}" for section, options in sections)


def _setting(option: Option) -> str:
    names = [f"`{name}`" for name in (option.spelling if option.flag else "", option.variable) if name]
    default = "repeatable" if option.repeatable else option.default_text
    return f"* {', '.join(names)}{f' ({default})' if default else ''}: {option.help.replace('<', '&lt;')}\n"


# --- Triton's options

OPTION_NOTES = {
    "model-repository": "folders, `s3://`, `gs://`, `as://`",
    "strict-readiness": "a third value, `auto`, is the default: see [above](#readiness)",
    "http-thread-count": "threads for large bodies and repository control; other requests need none",
    "sagemaker-thread-count": "as `--http-thread-count`",
    "vertex-ai-thread-count": "as `--http-thread-count`",
    "log-format": "and `json`",
    "backend-config": "only `default-max-batch-size`, those of `python` and of "
    "[`tensorrt`](backends.md#tensorrt-plans), and for `onnxruntime` also "
    "`enable-global-threadpool`, `intra_op_thread_count`, `inter_op_thread_count`",
    "backend-directory": "only backends that are written in Python",
    "repoagent-directory": "only `checksum`, which is built in",
    "model-load-gpu-limit": "no limit",
    "enable-peer-access": "",
    "cache-config": "`local` and `redis`, whose `wait_timeout` has no effect: `lookup_timeout` is the budget of a "
    "request",
    "cache-directory": "the caches are built in",
    "grpc-infer-thread-count": "threads for large messages and repository control; other calls need none",
    "grpc-infer-allocation-pool-size": "no such pool",
    "grpc-max-response-pool-size": "no such pool: a stream whose client does not read waits",
    "grpc-http2-max-pings-without-data": "no such limit",
    "grpc-address": "`unix:<path>` is a Unix socket",
    "rate-limit-resource": "default: the largest amount that one instance requests",
    "pinned-memory-pool-byte-size": "no such pool",
    "cuda-memory-pool-byte-size": "ONNX Runtime's arena: `gpu_mem_limit` of a model",
    "cuda-virtual-address-size": "nothing is reserved for states that grow",
    "buffer-manager-thread-count": "no such threads",
    "host-policy": "the container's CPU set",
    "log-file": "[opened again](processes.md#the-log-file) at SIGUSR1, or when it was removed",
}


def _tritons() -> str:
    """The options with a note, and those without effect."""
    lines, unused = ["| option | here |", "|---|---|"], []
    for each in (*SERVER_OPTIONS.values(), *UNUSED_OPTIONS):
        if each.flag and not each.own:
            note = OPTION_NOTES.get(each.flag, "")
            names = ", ".join(f"`--{name}`" for name in each.names)
            if each in UNUSED_OPTIONS:
                unused.append(f"{names} ({note})" if note else names)
            elif note:
                lines.append(f"| {names} | {note} |")
    table = "\n".join(lines)
    return f"{table}\n\nAccepted without effect: {', '.join(unused)}.\n"


# --- metrics


class Row(NamedTuple):
    """One family; each of its series has `labels`."""

    name: str
    type: str
    labels: tuple[str, ...]
    meaning: str


# Lists have the name with which those of their metrics begin; these begin otherwise.
_IN_LISTS = {
    "nv_cache_": "trident_response_cache_",
    "nv_model_": "nv_inference_",
    "trident_batch_": "nv_inference_",
    "trident_inference_cancellations_": "nv_inference_",
    "trident_http_": "flask_",
}
_LISTS = (
    *("nv_inference_", "trident_oldest_", "trident_bucket_", "trident_model_process_", "trident_model_memory_"),
    *("trident_model_", "trident_demand_", "trident_response_cache_", "trident_trace_", "trident_payload_log_"),
    *("trident_log_", "trident_resource_", "trident_repository_", "nv_", "flask_", "trident_grpc_"),
)
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
    "[what they mean](spec/http.md#13-requests-that-are-given-up-trident)",
    "trident_model_version_state": "`state` is one of LOADING, READY, UNLOADING, UNAVAILABLE",
    "trident_model_loads_total": "`cause` is one of start, poll, request, demand, `result` one of success, failure, "
    "out_of_memory; a model counts once",
    "trident_demand_evictions_total": f"`reason` is one of {', '.join(reason.value for reason in Reason)}",
    FIRST_RESPONSE: "whole milliseconds, also of failed requests; by default 100, 500, 2000 and 5000",
    REQUEST: "by default 16 bounds from 0.0001 to 10, as the next two",
    "nv_cache_miss_duration_per_model": "looking up, and keeping the answer",
    "trident_trace_lost_total": "`reason` is one of queue_full (a slow disk or collector), not_written",
    "trident_payload_log_lost_total": "`reason` is one of queue_full (a slow or failing target), not_written",
    "trident_log_lines_dropped_total": "of the engine and the answering process: 1000 lines waited, or the disk is "
    "full",
    "trident_response_cache_faults_total": "`kind` is one of late (no answer within the budget), left_out (gone or "
    "slow, not asked), lost (the connection broke), damaged (no answer of this server) and unwritten",
    "nv_pinned_memory_pool_total_bytes": "always 0: this server has no such pool",
    "nv_pinned_memory_pool_used_bytes": "always 0",
    "nv_gpu_utilization": "GPU metrics are read from the driver, for the GPUs that the server may use",
}
_ROUTED = ("method", "route", "status")
_ERRORS = "Responses with an error, of all routes; a series appears with its first"
_RESPONSES = "Responses of all routes; a series appears with its first"
_SECONDS = "Seconds from a request to its response, on the server"
_RAISED = "Requests that ended in an unexpected error"
_LIBRARY = "Always 1; `version` is that of the library that counts these"
_CALLS = "Calls over gRPC that have ended; a stream counts once"
_REFUSED_CALLS = "Calls over gRPC, and requests of streams, that have ended with an error"
_OF_PORTS = (
    Row("trident_http_errors_total", "counter", ("method", "model", "route", "status"), _ERRORS),
    Row("trident_http_responses_total", "counter", _ROUTED, _RESPONSES),
    Row("flask_http_request_duration_seconds", "histogram", _ROUTED, _SECONDS),
    Row("flask_http_request_total", "counter", ("method", "status"), "Requests"),
    Row("flask_http_request_exceptions_total", "counter", ("method", "status"), _RAISED),
    Row("flask_exporter_info", "gauge", ("version",), _LIBRARY),
    Row("trident_grpc_responses_total", "counter", ("method", "status"), _CALLS),
    Row("trident_grpc_errors_total", "counter", ("method", "model", "status"), _REFUSED_CALLS),
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
    is_cached=True,
)
"""A model version without the optional labels."""


def with_every_metric(page: str) -> str:
    """The page on metrics with their types and meanings, as `# HELP` has them; `docs/site_hooks.py` calls this."""
    return _fill(page, _metrics(lambda row: f", {row.type}: {row.meaning}."))


def _metrics(rest: Callable[[Row], str]) -> dict[str, str]:
    """Each list of metrics, with `rest` behind the name and the labels of each."""
    lists: dict[str, str] = {}
    for row in metric_rows():
        labels = f"{{{','.join(row.labels)}}}" if row.labels else ""
        name = _list_of(row)
        lists[name] = lists.get(name, "") + f"* `{row.name}{labels}`{rest(row)}\n"
    return lists


def _note(row: Row) -> str:
    return f": {NOTES[row.name]}" if row.name in NOTES else ""


def _list_of(row: Row) -> str:
    if "_inference_" in row.name and row.type in ("histogram", "summary"):
        return "latencies"
    others = (name for prefix, name in _IN_LISTS.items() if row.name.startswith(prefix))
    return next(others, "") or next(name for name in _LISTS if row.name.startswith(name))


def _figures() -> str:
    return "".join(f"* `{name}`: {each.text}\n" for name, each in FIGURES.items())


def metric_rows() -> list[Row]:
    """Every family that the server can show, in the order of its page."""
    return [*(_row(family) for family in families_of(MODEL)), *_OF_PORTS]


def families_of(model: ModelMetrics) -> list[MetricFamily]:
    """All families of a server with this model, a GPU, and a repository in cloud storage."""
    snapshot = MetricsSnapshot(
        models=(model,),
        states=(VersionStateMetrics(model=model.model, version=str(model.version), state="READY"),),
        loads=(LoadMetrics(cause="start", result="success", count=1),),
        hardware=HardwareReading(cpu=_CPU, gpus=(_GPU,)),
        downloads=DownloadMetrics(),
        demand=DemandMetrics(
            registered=1,
            resident_bytes=1,
            budget_bytes=1,
            waiting=0,
            evictions={reason.value: 0 for reason in Reason},
            cold_starts=(0,) * 11,
            cold_seconds=0.0,
        ),
        response_cache=ResponseCacheMetrics(size=2, used=1, entries=1, evictions=0),
        remote_cache=RemoteCacheMetrics(is_up=True, faults={"late": 0}),
        traces=TraceCounts().metrics(),
        payload_log=TraceCounts().metrics(),
        resources=(ResourceMetrics(resource="r", device="0", limit=1, held=1, waiting=0),),
    )
    return list(metric_families(snapshot, MetricsOptions()))


def _row(family: MetricFamily) -> Row:
    note = NOTES.get(family.name)
    text = re.sub(r" \((?:includes|does not include) cached requests\)", "", family.help).rstrip(".")
    meaning = f"{text}; {note}" if note else text
    return Row(family.name, family.type, label_names(family), meaning)


def label_names(family: MetricFamily) -> tuple[str, ...]:
    """The labels of all its series, without those of buckets and quantiles."""
    return tuple(sorted({name for sample in family.samples for name in sample.labels} - {"le", "quantile"}))


if __name__ == "__main__":
    for path, content in pages().items():
        path.write_text(content)
