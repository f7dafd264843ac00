"""Traces for tests of what becomes of them."""

from __future__ import annotations

from trident.core.observability.tracing.settings import Setting, TraceSettings
from trident.core.observability.tracing.trace import Trace

TIMES = ("TIMESTAMPS",)


def setting_of(levels: tuple[str, ...] = TIMES, *, rate: int = 1, count: int = -1, frequency: int = 0) -> Setting:
    return Setting(TraceSettings(levels=levels, rate=rate, count=count, frequency=frequency))


def trace_of(number: int, setting: Setting, *, model: str = "m", request_id: str = "") -> Trace:
    trace = Trace(number, model, 1, request_id, 10, setting)
    trace.events = [("REQUEST_START", 10), ("REQUEST_END", 20)]
    return trace


def child_of(parent: Trace, number: int, *, model: str = "m") -> Trace:
    trace = trace_of(number, parent.setting, model=model)
    trace.parent, trace.root = parent, parent.root
    parent.children.append(trace)
    return trace
