"""The trace settings of the server and of its models, and what a model inherits; the record of one sampled request, and
of the requests that its models made for it.

Nothing here samples or writes. Source: docs/spec/trace-and-log.md section 1.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from trident.core.errors import InvalidRequest

TIMESTAMPS = "TIMESTAMPS"
TENSORS = "TENSORS"
OFF = "OFF"
LEVELS = (TIMESTAMPS, TENSORS)

# The settings that a client may change, by the names of the protocol. The level is a list of texts, the others numbers.
LEVEL = "trace_level"
RATE = "trace_rate"
COUNT = "trace_count"
FREQUENCY = "log_frequency"
CHANGEABLE = (LEVEL, RATE, COUNT, FREQUENCY)

UNLIMITED = -1

# New values by setting; None clears a setting, so that it is inherited again.
Value = int | tuple[str, ...]
Changes = Mapping[str, Value | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """The effective settings of a model. `levels` is empty if nothing is traced.

    One of `rate` requests is sampled, 0 for none; `count` more at most, -1 for no limit. A file gets `frequency`
    traces, 0 for one file with all.
    """

    levels: tuple[str, ...] = ()
    rate: int = 1000
    count: int = UNLIMITED
    frequency: int = 0

    def changed(self, values: Mapping[str, Value]) -> TraceSettings:
        fields = {_FIELDS[name]: value for name, value in values.items()}
        return replace(self, **fields)  # type: ignore[arg-type]


_FIELDS = {LEVEL: "levels", RATE: "rate", COUNT: "count", FREQUENCY: "frequency"}


class TraceTable:
    """The settings of the server and those that models have of their own. Not thread-safe.

    A value that a model does not have is the server's, and one that the server does not have is that of the start.
    """

    def __init__(self, start: TraceSettings, *, has_destination: bool) -> None:
        """`has_destination`: traces can be written somewhere; without that nothing can be traced."""
        self._start = start
        self._has_destination = has_destination
        self._server: dict[str, Value] = {}
        self._models: dict[str, dict[str, Value]] = {}

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._models)

    def of(self, model: str = "") -> TraceSettings:
        return self._merged(self._server, self._models.get(model, {}))

    def change(self, model: str, changes: Changes) -> None:
        """Change the settings of `model`, "" for the server's. Raises InvalidRequest; then nothing has changed."""
        own = dict(self._models.get(model, {}) if model else self._server)
        for name, value in changes.items():
            if value is None:
                own.pop(name, None)
            else:
                own[name] = value
        if model:
            self._check(self._merged(self._server, own))
            self._models[model] = own
            if not own:
                del self._models[model]
            return
        self._check(self._merged(own, {}))
        for values in self._models.values():
            self._check(self._merged(own, values))
        self._server = own

    def _merged(self, server: Mapping[str, Value], own: Mapping[str, Value]) -> TraceSettings:
        return self._start.changed({**server, **own})

    def _check(self, settings: TraceSettings) -> None:
        if not settings.levels:
            return
        reason, hint = "", ""
        if not settings.rate:
            reason, hint = "sample rate must be non-zero", "send a trace_rate from 1"
        elif not self._has_destination:
            reason, hint = "trace file name is not given", "start the server with --trace-config triton,file=FILE"
        if reason:
            raise InvalidRequest(f"Attempting to set invalid trace setting :{reason}", hint=hint)


# Milliseconds, and spans.
DEFAULT_QUEUE_SIZE = 2048
DEFAULT_SCHEDULE_DELAY_MS = 5000
DEFAULT_BATCH_SIZE = 512
DEFAULT_RESOURCE: Mapping[str, str] = {"service.name": "triton-inference-server"}


class TraceMode(Enum):
    TRITON = "triton"
    OPENTELEMETRY = "opentelemetry"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """The collector of spans over OTLP, at `url`. `resource` describes the server. At most `queue_size` spans wait,
    `batch_size` of them are sent together, and `delay_ms` milliseconds pass at most before they are.
    """

    url: str = "http://localhost:4318/v1/traces"
    resource: Mapping[str, str] = field(default_factory=lambda: DEFAULT_RESOURCE)
    queue_size: int = DEFAULT_QUEUE_SIZE
    delay_ms: int = DEFAULT_SCHEDULE_DELAY_MS
    batch_size: int = DEFAULT_BATCH_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """`start` are the settings until a client changes them. `file` is empty if there is none. `shown` are the settings
    of the mode as clients see them, which they cannot change. `numbers` are the first number of a trace and the step
    to the next: no two engines of a server give one the same number. The last `kept` traces stay in memory.
    """

    mode: TraceMode = TraceMode.TRITON
    start: TraceSettings = field(default_factory=TraceSettings)
    file: str = ""
    export: ExportOptions = field(default_factory=ExportOptions)
    shown: Mapping[str, str] = field(default_factory=dict)
    numbers: tuple[int, int] = (1, 1)
    kept: int = 0

    @property
    def has_destination(self) -> bool:
        return self.mode is TraceMode.OPENTELEMETRY or bool(self.file or self.kept)


def shown_settings(settings: TraceSettings, left: int, options: TraceOptions) -> dict[str, list[str] | str]:
    """The settings as clients see them, in Triton's order. `left` is how many more requests may be sampled."""
    shown: dict[str, list[str] | str] = {
        "trace_level": list(settings.levels) or [OFF],
        "trace_rate": str(settings.rate),
        "trace_count": str(left),
    }
    if options.mode is TraceMode.TRITON:
        shown["log_frequency"] = str(settings.frequency)
        shown["trace_file"] = options.file
    shown["trace_mode"] = options.mode.value
    return {**shown, **options.shown}


class Setting:
    """One for each change of the settings: each begins to count anew. Any thread.

    `levels` are those of `settings` that the mode can show. `left` is how many more requests may be sampled, -1 for no
    limit; `sampled` is how many were. `in_flight` counts the traces that have begun and were not given to the trace
    thread, and `is_replaced` says that no others will begin: both under the tracer's lock. The trace thread keeps in
    `kept` the texts of traces that are written later, and in `collected` how many it has seen.
    """

    __slots__ = (
        "_lock",
        "_numbers",
        "collected",
        "in_flight",
        "is_replaced",
        "kept",
        "kept_size",
        "left",
        "levels",
        "sampled",
        "settings",
    )

    def __init__(self, settings: TraceSettings, shows: tuple[str, ...] = LEVELS) -> None:
        """`shows` are the levels that the mode can show; without any of them nothing is sampled."""
        self.settings = settings
        self.levels = tuple(level for level in settings.levels if level in shows)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self.left = settings.count
        self.sampled = 0
        self.in_flight = 0
        self.is_replaced = False
        self.kept: list[str] = []
        self.kept_size = 0
        self.collected = 0

    def sample(self) -> bool:
        """Return whether the request that has just arrived is sampled."""
        rate = self.settings.rate if self.levels else 0
        # `next` is atomic: only requests that may be sampled take the lock.
        if not rate or next(self._numbers) % rate or not self.left:
            return False
        with self._lock:
            if not self.left:
                return False
            if self.left != UNLIMITED:
                self.left -= 1
            self.sampled += 1
            return True


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
    """The context of a trace among those of other programs, in W3C's terms: numbers of 128 and 64 bits.

    `root_span` is that of the whole request, `parent_span` the client's, 0 without one.
    """

    trace: int
    root_span: int
    parent_span: int
    state: str


@dataclass(slots=True, eq=False)
class Trace:
    """One request for one model. A request that a client sent is the `root` of those that its models made.

    The engine's threads add to it, one after the other, until it is complete; then only the trace thread reads it.
    `number` is unique; `parent` is None for a root. `begun_ns` is its start by the monotonic clock. `span` is the id of
    the model's span, 0 without OpenTelemetry. `ahead` and `behind` are the events of the front end before and after
    those of the model.
    """

    number: int
    model_name: str
    model_version: int
    request_id: str
    begun_ns: int
    setting: Setting
    parent: Trace | None = None
    root: Trace = field(init=False)
    children: list[Trace] = field(default_factory=list)
    events: list[TraceEvent] = field(default_factory=list)
    ahead: tuple[TraceEvent, ...] = ()
    behind: tuple[TraceEvent, ...] = ()
    tensors: list[TracedTensor] = field(default_factory=list)
    context: TraceSpanContext | None = None
    span: int = 0
    has_responded: bool = False
    # Of a root: the requests that have not ended, its own included; and whether the front end has sent the answer.
    open_parts: int = 1
    is_answered: bool = False

    def __post_init__(self) -> None:
        self.root = self

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
    return f"00-{trace:032x}-{span:016x}-01"


class Loss(Enum):
    """The reason for which a trace, with OpenTelemetry a span, or a request of the payload log was lost; the value is
    the label of the metric."""

    QUEUE_FULL = "queue_full"
    NOT_WRITTEN = "not_written"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceMetrics:
    """In traces, with OpenTelemetry in spans; or in requests of the payload log."""

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
