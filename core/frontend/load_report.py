"""Load reports on answers, by which balancers weigh servers: Open Request Cost Aggregation, short ORCA.

A client, or the balancer on its way, asks with the header `endpoint-load-metrics-format`. Triton answers `text` and
`json`, with the cache of a TensorRT-LLM model; `bin` is what gRPC's and Envoy's weighted round robin read.
Source: docs/spec/http.md section 9 "ORCA", docs/scale.md.
"""

from __future__ import annotations

import struct
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import orjson

from trident.core.engine.protocol import Engine
from trident.core.observability.metrics.snapshot import CustomFamilyMetrics, MetricsSnapshot

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
        figures, named = self._server_figures(), self._named_figures(model)
        if form == "bin":
            return _BINARY, b64encode(_message(figures, named)).decode()
        if form == "json":
            return _HEADER, f"JSON {orjson.dumps({**figures, 'named_metrics': named}).decode()}"
        every = {**figures, **{f"named_metrics.{name}": value for name, value in named.items()}}
        return _HEADER, "TEXT " + ", ".join([f"{name}={_number(value)}" for name, value in every.items()])

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
        """What the report has fields for. The busiest GPU is the utilization of the application."""
        hardware = self._snapshot.hardware
        figures: dict[str, float] = {}
        if hardware.cpu is not None:
            figures["cpu_utilization"] = hardware.cpu.utilization
            figures["mem_utilization"] = hardware.cpu.memory_used / (hardware.cpu.memory_total or 1)
        gpus = [gpu.utilization for gpu in hardware.gpus if gpu.utilization is not None]
        if gpus:
            figures["application_utilization"] = max(gpus)
        return {**figures, **self._rates}

    def _named_figures(self, model: str) -> Figures:
        pending = sum([each.statistics.pending for each in self._snapshot.models])
        return {"pending_requests": pending, **cache_figures(model, self._snapshot.custom)}


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


def _number(value: float) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def _message(figures: Figures, named: Figures) -> bytes:
    """An OrcaLoadReport in the wire format of protobuf: doubles, and a map whose entries are messages."""
    parts = [_double(_FIELDS[name], value) for name, value in figures.items()]
    for name, value in named.items():
        key = name.encode()
        entry = bytes((1 << 3 | 2, len(key))) + key + _double(2, value)
        parts.append(bytes((_NAMED << 3 | 2, len(entry))) + entry)
    return b"".join(parts)


def _double(number: int, value: float) -> bytes:
    return struct.pack("<Bd", number << 3 | 1, value)
