"""What is noted of one sampled request, and of the requests that its models made for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from core.observability.tracing.setting import Setting

# An event: its name, and nanoseconds of the monotonic clock.
Event = tuple[str, int]


class TracedTensor(NamedTuple):
    """A tensor as it was: `content` has its elements as the v2 protocol sends them, perhaps not all of them."""

    activity: str
    name: str
    datatype: str
    shape: tuple[int, ...]
    content: bytes


class SpanContext(NamedTuple):
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
        self.events: list[Event] = []
        self.ahead: tuple[Event, ...] = ()
        self.behind: tuple[Event, ...] = ()
        self.tensors: list[TracedTensor] = []
        self.context: SpanContext | None = None
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
