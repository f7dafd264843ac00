"""Administration for HTTP and gRPC: the settings of log and traces, checks, the
statistics, and the load, in ORCA's reports on answers.

Source: docs/spec/trace-and-log.md, docs/spec/statistics-and-metrics.md section A, docs/spec/http.md section 9 "ORCA",
docs/scale.md.
"""

from __future__ import annotations

import difflib
import re
import struct
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from trident.core.cuda import HANDLE_SIZE
from trident.core.engine.protocol import Engine
from trident.core.errors import InvalidRequest, ModelNotFound, ModelNotReady, Unsupported
from trident.core.observability.history import NotedRequest, VersionRequests
from trident.core.observability.log import FORMATS, LogLevels, log_levels, log_options
from trident.core.observability.statistics import (
    LONG_S,
    BatchStatistics,
    BucketStatistics,
    CustomFamilyMetrics,
    MetricsSnapshot,
    ResponseStatistics,
    StatisticsSnapshot,
    VersionStatistics,
)
from trident.core.observability.tracing.trace import (
    CHANGEABLE,
    COUNT,
    FREQUENCY,
    LEVEL,
    LEVELS,
    OFF,
    RATE,
    UNLIMITED,
    Value,
)

_FILE = "log_file"
_FORMAT = "log_format"
_SWITCHES = {"log_info": "info", "log_warning": "warning", "log_error": "error"}
_LEVEL = "log_verbose_level"
# Trident's own.
_ACCESS = "log_access"
_BOOLEANS = {"response_timing": "timing", "histogram_latencies": "histograms"}
# Triton applies the settings of a call in this order, and those before an invalid one stay applied.
ORDER = (_FILE, *_SWITCHES, _LEVEL, _FORMAT, _ACCESS, *_BOOLEANS)
_HIGHEST_LEVEL = 2**32 - 1
_SCOPES = ("false", "true", "all")

# Makes a setting of the value that a client sent, by the kinds of value. Raises InvalidRequest.
AsBool = Callable[[str, object], bool]
AsInteger = Callable[[str, object], int]
AsText = Callable[[str, object], str]


def shown_settings() -> dict[str, object]:
    """The settings of this process's log: Triton's, and of Trident's own those that are switched on, because clients of
    Triton compare the whole answer.
    """
    options = log_options()
    own = {_ACCESS: options.access} if options.access != _SCOPES[0] else {}
    return {
        _FILE: options.file,
        **{name: getattr(options, field) for name, field in _SWITCHES.items()},
        _LEVEL: options.verbose,
        _FORMAT: options.format,
        **own,
        **{name: True for name, field in _BOOLEANS.items() if getattr(options, field)},
    }


def changed_settings(
    wanted: Mapping[str, object], as_bool: AsBool, as_integer: AsInteger, as_text: AsText, before_name: str
) -> Iterable[LogLevels]:
    """The levels after each of the changes, in Triton's order. Raises InvalidRequest and Unsupported at an invalid one,
    and before any for a setting that does not exist. `before_name` is what the protocol has before the name of a
    setting with an unknown word.
    """
    check_names("log setting", wanted, ORDER)
    levels = log_levels()
    for name in ORDER:
        if name not in wanted:
            continue
        value = wanted[name]
        if name == _FILE:
            raise Unsupported("log file location can not be updated through network protocol")
        if name == _LEVEL:
            levels = replace(levels, verbose=min(as_integer(name, value), _HIGHEST_LEVEL))
        elif name == _FORMAT:
            levels = replace(levels, format=_known(before_name + name, as_text(name, value), FORMATS))
        elif name == _ACCESS:
            text = as_text(name, value) if not isinstance(value, bool) else str(value).lower()
            levels = replace(levels, access=_known(before_name + name, text, _SCOPES))
        else:
            switch: Any = {(_SWITCHES | _BOOLEANS)[name]: as_bool(name, value)}
            levels = replace(levels, **switch)
        yield levels


def check_names(kind: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise InvalidRequest for an unknown name, which would otherwise be ignored silently."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f", did you mean '{near[0]}'?" if near else ""
            raise InvalidRequest(f"unknown {kind} '{name}'{meant}", hint=f"one of {', '.join(known)}")


def _known(name: str, text: str, values: Sequence[str]) -> str:
    if text not in values:
        raise InvalidRequest(f"invalid argument for {name}, got: {text}", hint=f"one of {', '.join(values)}")
    return text


# Source: docs/spec/trace-and-log.md section 1.


FILE = "trace_file"
# Seen by clients, who cannot change it but may send it back as it is.
_SHOWN = (
    "trace_mode",
    "url",
    "resource",
    "bsp_max_queue_size",
    "bsp_schedule_delay",
    "bsp_max_export_batch_size",
)
_INTEGER = re.compile(r"\s*[+-]?[0-9]+", re.ASCII)
_LONGEST_INTEGER = 20
_RANGES = {RATE: range(2**32), COUNT: range(UNLIMITED, 2**31), FREQUENCY: range(2**32)}

# Makes the texts of a level, or the text of a number, of the value that a client sent. Raises InvalidRequest.
AsTexts = Callable[[str, object], list[str]]


def check_ready(is_ready: Callable[[], bool], model: str) -> None:
    """Raise InvalidRequest for a model that is unknown or not ready, with one text for both, as Triton does."""
    try:
        if is_ready():
            return
    except (ModelNotFound, ModelNotReady):
        pass
    raise InvalidRequest(f"Request for unknown model : {model}", model=model)


def wanted_changes(
    wanted: Mapping[str, object],
    shown: Callable[[], Mapping[str, object]],
    as_texts: AsTexts,
    as_text: AsText,
    before_count: str,
) -> dict[str, Value | None]:
    """The changes that a client wants. A value of None clears a setting. Raises InvalidRequest and Unsupported, also
    for a setting that does not exist.

    `shown` tells the settings as clients see them. `before_count` is what the protocol has between an invalid count and
    the text before it.
    """
    check_names("trace setting", wanted, (*CHANGEABLE, FILE, *_SHOWN))
    if FILE in wanted:
        raise Unsupported("trace file location can not be updated through network protocol")
    fixed = [name for name in wanted if name in _SHOWN]
    current = shown() if fixed else {}
    for name in fixed:
        given = wanted[name]
        if given is None or as_text(name, given) != current.get(name):
            raise Unsupported(f"'{name}' can not be updated through network protocol")
    changes: dict[str, Value | None] = {}
    if LEVEL in wanted:
        given = wanted[LEVEL]
        texts = None if given is None else as_texts(LEVEL, given)
        if texts is None:
            changes[LEVEL] = None
        elif texts:
            if OFF in texts and len(texts) > 1:
                raise InvalidRequest("Expect only one trace level 'OFF' is specified")
            check_names("trace level", texts, (OFF, *LEVELS))
            changes[LEVEL] = tuple(level for level in LEVELS if level in texts)
    for name in (RATE, COUNT, FREQUENCY):
        if name in wanted:
            given = wanted[name]
            changes[name] = None if given is None else _number(name, as_text(name, given), before_count)
    return changes


def _number(name: str, text: str, before_count: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise InvalidRequest(f"Unable to parse '{name}', got: {text}")
    allowed = _RANGES[name]
    number = int(text) if len(text) <= _LONGEST_INTEGER else allowed.stop
    if number in allowed:
        return number
    if name == COUNT and number < UNLIMITED:
        raise InvalidRequest(f"Unable to parse '{name}'. Expecting value >= -1, got:{before_count}{text}")
    bounds = f"[ {allowed.start}, {allowed.stop - 1} ]"
    raise InvalidRequest(f"Unable to parse '{name}', value is out of range {bounds}, got: {text}")


# Source: docs/spec/http.md section 8.

UNLOAD_PARAMETERS = ("unload_dependents",)


def refuse_repository(name: str) -> None:
    if name:
        raise Unsupported("'repository_name' specification is not supported")


# Source: docs/spec/shared-memory.md sections 1 and 3.


def check_allowed(*, allowed: bool) -> None:
    if not allowed:
        raise Unsupported(
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
            hint="or send the tensors in the request",
        )


def check_region_name(name: str, kind: str) -> None:
    """Raise InvalidRequest if a region has no name; `kind` is system or cuda."""
    if not name:
        raise InvalidRequest(f"'region name' is necessary to register {kind} shared memory region")


def check_handle(handle: bytes) -> None:
    """Raise InvalidRequest unless `handle` has the size of a handle of CUDA IPC."""
    if len(handle) != HANDLE_SIZE:
        raise InvalidRequest(
            "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t",
            hint=f"it has {len(handle)} bytes, and must have {HANDLE_SIZE}",
        )


Duration = dict[str, int]


def model_statistics_json(versions: Iterable[VersionStatistics]) -> dict[str, Any]:
    """With Triton's order of keys. `batch_close_count`, `bucket_stats` and `long_execution` are Trident's."""
    return {"model_stats": [_version(version) for version in versions]}


def slowest_requests_json(name: str, versions: Iterable[VersionRequests]) -> dict[str, Any]:
    """Times in whole microseconds; unknown values are omitted."""
    return {
        "model_name": name,
        "versions": [
            {
                "version": str(version.version),
                "slowest": [_noted(request) for request in version.slowest],
                "failed": [_noted(request) for request in version.failed],
            }
            for version in versions
        ],
    }


def _noted(request: NotedRequest) -> dict[str, Any]:
    ended = datetime.fromtimestamp(request.ended_ms / 1000, UTC)
    shown: dict[str, Any] = {
        "id": request.id,
        "ended": f"{ended:%Y-%m-%dT%H:%M:%S}.{request.ended_ms % 1000:03}Z",
        "status": request.failure or "OK",
        "duration_us": request.duration_ns // 1000,
    }
    if request.batch_size:
        shown |= {
            "queue_us": request.queue_ns // 1000,
            "compute_input_us": request.compute_input_ns // 1000,
            "compute_infer_us": request.compute_infer_ns // 1000,
            "compute_output_us": request.compute_output_ns // 1000,
            "batch_size": request.batch_size,
        }
    more = {"batch_close": request.batch_close, "error": request.error}
    return {**shown, **{name: text for name, text in more.items() if text}}


def _version(version: VersionStatistics) -> dict[str, Any]:
    """Only the memory of a model's own processes is known: that of the others stays empty."""
    statistics = version.statistics
    success = statistics.request_success
    long_execution = {"ns": statistics.oldest_execution_ns, "pending_count": statistics.pending}
    return {
        "name": version.name,
        "version": str(version.version),
        "last_inference": statistics.last_inference_ms,
        "inference_count": statistics.inference_count,
        "execution_count": statistics.execution_count,
        "inference_stats": {
            "success": _duration(success, statistics.request_ns),
            "fail": _duration(sum(statistics.request_failures.values()), statistics.failure_ns),
            "queue": _duration(success, statistics.queue_ns),
            **_compute(statistics.request_success - statistics.cache_hit_count, statistics),
            "cache_hit": _duration(statistics.cache_hit_count, statistics.cache_hit_ns),
            "cache_miss": _duration(statistics.cache_miss_count, statistics.cache_miss_ns),
        },
        "response_stats": {str(response.index): _response(response) for response in statistics.responses},
        "batch_stats": [
            {"batch_size": batch.batch_size, **_compute(batch.execution_count, batch)} for batch in statistics.batches
        ],
        "memory_usage": [
            *([{"type": "CPU", "id": 0, "byte_size": version.memory_bytes}] if version.memory_bytes else []),
            *memory_usage(version.device_bytes),
        ],
        "batch_close_count": {reason.label: count for reason, count in statistics.batch_closes.items()},
        **({"bucket_stats": [_bucket(bucket) for bucket in statistics.buckets]} if statistics.buckets else {}),
        **({"long_execution": long_execution} if statistics.oldest_execution_ns >= LONG_S * 1e9 else {}),
    }


def memory_usage(device_bytes: Mapping[str, int]) -> list[dict[str, str | int]]:
    """The items of Triton's `memory_usage` for what a version holds of devices."""
    found: list[dict[str, str | int]] = []
    for device, size in device_bytes.items():
        kind, _, number = device.partition(":")
        found.append({"type": kind.upper(), "id": int(number or 0), "byte_size": size})
    return found


def _bucket(bucket: BucketStatistics) -> dict[str, int]:
    """Only the sizes to which the model pads."""
    sizes = {"batch_size": bucket.batch_size, "length": bucket.length}
    return {
        **{name: size for name, size in sizes.items() if size},
        "execution_count": bucket.execution_count,
        "element_count": bucket.element_count,
        "padding_count": bucket.padding_count,
    }


def _compute(count: int, durations: StatisticsSnapshot | BatchStatistics) -> dict[str, Duration]:
    return {
        "compute_input": _duration(count, durations.compute_input_ns),
        "compute_infer": _duration(count, durations.compute_infer_ns),
        "compute_output": _duration(count, durations.compute_output_ns),
    }


def _response(response: ResponseStatistics) -> dict[str, Duration]:
    """`compute_output` only counts: the time after a response was sent is not measured."""
    success, fail, empty, cancelled = map(_duration, response.counts, response.durations_ns)
    made = (success, fail, empty)
    return {
        "compute_infer": _duration(sum(each["count"] for each in made), sum(each["ns"] for each in made)),
        "compute_output": _duration(success["count"], 0),
        "success": success,
        "fail": fail,
        "empty_response": empty,
        "cancel": cancelled,
    }


def _duration(count: int, ns: int) -> Duration:
    return {"count": count, "ns": ns}


# A client, or the balancer on its way, asks for its load with the header `endpoint-load-metrics-format`. Triton answers
# `text` and `json`, with the cache of a TensorRT-LLM model; `bin` is what gRPC's and Envoy's weighted round robin read.


_HEADER: Final = "endpoint-load-metrics"
_BINARY: Final = "endpoint-load-metrics-bin"

FRESH_S: Final = 0.25
"""The engine is asked for its metrics at most once in this time, however many answers carry a report."""
_RATES_OVER_S: Final = 1.0
_RATES_UNTIL_S: Final = 10.0

# The numbers of the fields in xds/data/orca/v3/orca_load_report.proto, and of the map of named metrics.
_FIELDS: Final = {
    "cpu_utilization": 1,
    "mem_utilization": 2,
    "rps_fractional": 6,
    "eps": 7,
    "application_utilization": 9,
}
_NAMED: Final = 8

_CACHE_FAMILY: Final = "nv_trt_llm_kv_cache_block_metrics"
_CACHE_KIND: Final = "kv_cache_block_type"

Figures = Mapping[str, float]


class LoadReports:
    """The reports of one front end. Any thread; two that find the figures old both ask the engine, which does no harm.

    Rates are those of the last second or more; without a report in the last ten seconds there are none yet.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._asked_s = -FRESH_S
        self._snapshot = MetricsSnapshot()
        # When requests were counted: how many had been answered, and failed.
        self._counted: tuple[float, int, int] | None = None
        self._rates: dict[str, float] = {}

    def field(self, form: str, model: str) -> tuple[str, str] | None:
        """Name and value of the header or trailer with the load, for an answer of `model`; None for another `form` than
        `text`, `json` and `bin`. May wait for the engine."""
        form = form.lower()
        if form not in ("text", "json", "bin"):
            return None
        now_s = self._clock()
        if now_s - self._asked_s >= FRESH_S:
            self._asked_s = now_s
            self._snapshot = self._engine.metrics()
            self._count(now_s)
        figures = self._server_figures()
        pending = sum([each.statistics.pending for each in self._snapshot.models])
        named = {"pending_requests": pending, **cache_figures(model, self._snapshot.custom)}
        if form == "bin":
            parts = [_double(_FIELDS[name], value) for name, value in figures.items()]
            for name, value in named.items():
                key = name.encode()
                entry = bytes((1 << 3 | 2, len(key))) + key + _double(2, value)
                parts.append(bytes((_NAMED << 3 | 2, len(entry))) + entry)
            return _BINARY, b64encode(b"".join(parts)).decode()
        if form == "json":
            return _HEADER, f"JSON {orjson.dumps({**figures, 'named_metrics': named}).decode()}"
        every = {**figures, **{f"named_metrics.{name}": value for name, value in named.items()}}
        shown = [f"{name}={f'{value:.6f}' if isinstance(value, float) else value}" for name, value in every.items()]
        return _HEADER, "TEXT " + ", ".join(shown)

    def _count(self, now_s: float) -> None:
        answered = failed = 0
        for model in self._snapshot.models:
            statistics = model.statistics
            answered += statistics.request_success
            failed += sum(statistics.request_failures.values()) + sum(statistics.request_refusals.values())
        last = self._counted
        passed_s = 0.0 if last is None else now_s - last[0]
        if last is None or passed_s > _RATES_UNTIL_S:
            self._rates = {}
        elif passed_s >= _RATES_OVER_S:
            # A model that was unloaded takes its counts with it.
            failures = max(0, failed - last[2])
            requests = max(0, answered - last[1]) + failures
            self._rates = {"rps_fractional": requests / passed_s, "eps": failures / passed_s}
        else:
            return
        self._counted = (now_s, answered, failed)

    def _server_figures(self) -> Figures:
        """The figures with fields of their own. The busiest GPU is the utilization of the application."""
        hardware = self._snapshot.hardware
        figures: dict[str, float] = {}
        if hardware.cpu is not None:
            figures["cpu_utilization"] = hardware.cpu.utilization
            figures["mem_utilization"] = hardware.cpu.memory_used / (hardware.cpu.memory_total or 1)
        gpus = [gpu.utilization for gpu in hardware.gpus if gpu.utilization is not None]
        if gpus:
            figures["application_utilization"] = max(gpus)
        return {**figures, **self._rates}


def cache_figures(model: str, families: Iterable[CustomFamilyMetrics]) -> Figures:
    """The load of the cache of keys and values as Triton reports it; empty without the metrics of its blocks.

    The metrics are those of `model` where they name a model.
    """
    blocks = {
        series.labels.get(_CACHE_KIND): series.value
        for family in families
        if family.name == _CACHE_FAMILY
        for series in family.series
        if series.labels.get("model", model) == model
    }
    used, most, tokens = (blocks.get(kind) for kind in ("used", "max", "tokens_per"))
    if used is None or tokens is None or not most:
        return {}
    return {"kv_cache_utilization": used / most, "max_token_capacity": int(most * tokens)}


def _double(number: int, value: float) -> bytes:
    return struct.pack("<Bd", number << 3 | 1, value)
