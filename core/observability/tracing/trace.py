"""The record of one sampled request, and of the requests that its models made for it."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from trident.core.observability.tracing.settings import Setting

# An event: its name, and nanoseconds of the monotonic clock.
TraceEvent = tuple[str, int]


class TracedTensor(NamedTuple):
    """A tensor as it was: `content` has its elements as the v2 protocol sends them, perhaps not all of them."""

    activity: str
    name: str
    datatype: str
    shape: tuple[int, ...]
    content: bytes


class TraceSpanContext(NamedTuple):
    """The place of a trace among those of other programs, in W3C's terms: numbers of 128 and 64 bits.

    `root_span` is that of the whole request, `parent_span` the client's, 0 without one.
    """

    trace: int
    root_span: int
    parent_span: int
    state: str


class Trace:
    """One request for one model. A request that a client sent is the `root` of those that its models made.

    The engine's threads add to it, one after the other, until `is_done`; then only the trace thread reads it. `number`
    is unique; `parent` is None for a root. `begun_ns` is the monotonic clock when it began. `span` is the id of the
    model's span, 0 without OpenTelemetry. `ahead` and `behind` are the events of the front end before and after those
    of the model.
    """

    __slots__ = (
        "ahead",
        "begun_ns",
        "behind",
        "children",
        "context",
        "events",
        "is_answered",
        "is_done",
        "model_name",
        "model_version",
        "number",
        "open_parts",
        "parent",
        "request_id",
        "root",
        "setting",
        "span",
        "tensors",
    )

    def __init__(
        self, number: int, model_name: str, model_version: int, request_id: str, begun_ns: int, setting: Setting
    ) -> None:
        self.number = number
        self.model_name = model_name
        self.model_version = model_version
        self.request_id = request_id
        self.begun_ns = begun_ns
        self.setting = setting
        self.parent: Trace | None = None
        self.root: Trace = self
        self.children: list[Trace] = []
        self.events: list[TraceEvent] = []
        self.ahead: tuple[TraceEvent, ...] = ()
        self.behind: tuple[TraceEvent, ...] = ()
        self.tensors: list[TracedTensor] = []
        self.context: TraceSpanContext | None = None
        self.span = 0
        # Of a root: the requests that have not ended, its own included; and whether the front end has sent the answer.
        self.open_parts = 1
        self.is_answered = False
        self.is_done = False

    def family(self) -> list[Trace]:
        """The trace and all that descend from it, each before its children."""
        found = [self]
        for each in found:
            found += each.children
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRecord:
    """One request for one model. `parent` is the number of the request that led to it, 0 for one of a client.

    The events are in the order in which they happened; `depth` counts the requests above it.
    """

    number: int
    parent: int
    depth: int
    model: str
    version: int
    request_id: str
    events: tuple[TraceEvent, ...]


# Source: https://www.w3.org/TR/trace-context/ sections 3.2 and 3.3.


_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_FORBIDDEN_VERSION = "ff"
_LONGEST = 512


def parse_traceparent(text: str) -> tuple[int, int] | None:
    """The trace and the span that a traceparent names; None if it is not valid."""
    found = _TRACEPARENT.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if found is None or found[1] == _FORBIDDEN_VERSION or (found[1] == "00" and found[5]):
        return None
    trace, span = int(found[2], 16), int(found[3], 16)
    return (trace, span) if trace and span else None


def traceparent_of(trace: int, span: int) -> str:
    """The traceparent of a span that is sampled."""
    return f"00-{trace:032x}-{span:016x}-01"


class Loss(Enum):
    """Why a trace, or with OpenTelemetry a span, was lost; the value is the label of the metric."""

    QUEUE_FULL = "queue_full"
    NOT_WRITTEN = "not_written"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceMetrics:
    """In traces, with OpenTelemetry in spans."""

    written: int
    lost: Mapping[Loss, int]


class TraceCounts:
    """Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written = 0
        self._lost = dict.fromkeys(Loss, 0)

    def add_written(self, count: int) -> None:
        with self._lock:
            self._written += count

    def add_lost(self, loss: Loss, count: int = 1) -> None:
        with self._lock:
            self._lost[loss] += count

    def metrics(self) -> TraceMetrics:
        with self._lock:
            return TraceMetrics(written=self._written, lost=dict(self._lost))
