"""`trident trace`: the requests of a trace file, of this server or of Triton, as trees of spans.

Source: docs/spec/trace-and-log.md section 3.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from trident.adapters.common.options import TEXT, BadOption, Option, integer
from trident.core.observability.log import escaped
from trident.tools.options import read_values

_FRONT_END = {
    "receive": (("HTTP_RECV_START", "HTTP_RECV_END"), ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END")),
    "send": (("HTTP_SEND_START", "HTTP_SEND_END"), ("GRPC_SEND_START", "GRPC_SEND_END")),
}
# The parts of a model's work, each from its event to the next one.
_PARTS = {
    "QUEUE_START": "queue",
    "COMPUTE_START": "compute_input",
    "COMPUTE_INPUT_END": "compute_infer",
    "COMPUTE_OUTPUT_START": "compute_output",
    "COMPUTE_END": "",
}


@dataclass(slots=True)
class Span:
    """Times are nanoseconds of one clock."""

    name: str
    start_ns: int
    end_ns: int
    spans: list[Span] = field(default_factory=list)

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """`request_id` is "" if the client gave none."""

    request_id: str
    span: Span


@dataclass(slots=True)
class _Trace:
    """The events of one id in the file."""

    number: int
    model: str = ""
    version: str = ""
    request_id: str = ""
    parent: int | None = None
    times: dict[str, int] = field(default_factory=dict)


def read_requests(path: Path) -> list[TracedRequest]:
    """The requests in the order of the file, also while the server still writes it. Raises BadOption."""
    traces = _read(path)
    if not traces:
        raise BadOption(f"{path} has no traces with timestamps")
    children: dict[int, list[_Trace]] = {}
    for trace in traces.values():
        if trace.parent is not None and trace.parent in traces:
            children.setdefault(trace.parent, []).append(trace)
    roots = [trace for trace in traces.values() if trace.parent is None or trace.parent not in traces]
    return [TracedRequest(root.request_id, _request_span(root, children)) for root in roots]


def _read(path: Path) -> dict[int, _Trace]:
    traces: dict[int, _Trace] = {}
    try:
        for each in _objects(path.read_text()):
            trace = traces.setdefault(each["id"], _Trace(each["id"]))
            if "model_name" in each:
                trace.model, trace.version = str(each["model_name"]), str(each.get("model_version", ""))
                trace.request_id = str(each.get("request_id", ""))
                trace.parent = each.get("parent_id")
            for event in each.get("timestamps", ()):
                trace.times[str(event["name"])] = int(event["ns"])
    except OSError as error:
        raise BadOption(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadOption(f"{path} is not a trace file: it takes a JSON array of objects with an id") from None
    return {number: trace for number, trace in traces.items() if trace.times}


def _objects(text: str) -> list[dict[str, Any]]:
    """Raises ValueError."""
    try:
        found: list[dict[str, Any]] = json.loads(text)
    except ValueError:
        found = json.loads(text + "]")  # the server writes the end when it stops
    return found


def _request_span(root: _Trace, children: dict[int, list[_Trace]]) -> Span:
    """The span of the whole request, with those of the front end if they are known."""
    model = _model_span(root, children, frozenset())
    spans = [model]
    for name, pairs in _FRONT_END.items():
        for first, last in pairs:
            if first in root.times and last in root.times:
                spans.append(Span(name, root.times[first], root.times[last]))
    spans.sort(key=lambda span: span.start_ns)
    start_ns, end_ns = min(root.times.values()), max(*root.times.values(), model.end_ns)
    title = f"request {root.request_id}" if root.request_id else f"trace {root.number}"
    return Span(title, start_ns, end_ns, spans)


def _model_span(trace: _Trace, children: dict[int, list[_Trace]], above: frozenset[int]) -> Span:
    own = {name: ns for name, ns in trace.times.items() if not name.startswith(("HTTP_", "GRPC_"))}
    times = own or trace.times
    spans = [
        _model_span(child, children, above | {trace.number})
        for child in children.get(trace.number, ())
        if child.number not in above
    ]
    start_ns = trace.times.get("REQUEST_START", min(times.values()))
    end_ns = max([trace.times.get("REQUEST_END", max(times.values())), *(span.end_ns for span in spans)])
    spans += _parts(trace, is_composed=bool(spans))
    spans.sort(key=lambda span: span.start_ns)
    name = f"{trace.model or 'trace ' + str(trace.number)}{' v' + trace.version if trace.version else ''}"
    return Span(name, start_ns, end_ns, spans)


def _parts(trace: _Trace, *, is_composed: bool) -> list[Span]:
    known = [(name, trace.times[name]) for name in _PARTS if name in trace.times]
    if is_composed and len(known) == 1:
        return []  # an ensemble is not queued
    return [Span(_PARTS[name], ns, end_ns) for (name, ns), (_, end_ns) in pairwise(known)]


_BAR = 40
_NAME_AND_BAR = "{name:{width}}  {ms:>10.3f} ms  {bar}\n"


def draw(root: Span) -> str:
    """The tree, with a line break at its end. No line has a control character, whatever the names are."""
    lines = list(_lines(root, "", ""))
    width = max(len(name) for name, _ in lines)
    return "".join(
        _NAME_AND_BAR.format(name=name, width=width, ms=span.duration_ns / 1e6, bar=_bar(span, root))
        for name, span in lines
    )


def _lines(span: Span, first: str, others: str) -> Iterator[tuple[str, Span]]:
    """The name of each span, behind the branches of the tree; `others` stands before those below it."""
    yield first + escaped(span.name), span
    for index, each in enumerate(span.spans):
        is_last = index == len(span.spans) - 1
        yield from _lines(each, others + ("└─ " if is_last else "├─ "), others + ("   " if is_last else "│  "))


def _bar(span: Span, root: Span) -> str:
    """A bar at the position of the span in `root`; at least one mark, however short the span is."""
    total = max(1, root.duration_ns)
    start = min(_BAR - 1, max(0, (span.start_ns - root.start_ns) * _BAR // total))
    end = min(_BAR, max(start + 1, -(-(span.end_ns - root.start_ns) * _BAR // total)))
    return " " * start + "█" * (end - start)


_REQUEST = Option(flag="request", kind=TEXT, help="Show only requests with this id.")
_SLOWEST = Option(flag="slowest", kind=integer(1), help="Show only this many requests, those that took longest first.")
ACCEPTED = (_REQUEST, _SLOWEST)


def trace(arguments: Sequence[str]) -> int:
    """Print the trees. Returns 0. Raises BadOption, also for a file that cannot be read."""
    values, files = read_values(ACCEPTED, arguments)
    if len(files) != 1:
        raise BadOption("one trace file is expected: trident trace FILE")
    requests = read_requests(Path(files[0]))
    if values[_REQUEST.flag]:
        requests = [request for request in requests if request.request_id == values[_REQUEST.flag]]
    if values[_SLOWEST.flag]:
        requests = sorted(requests, key=lambda request: -request.span.duration_ns)[: values[_SLOWEST.flag]]
    if not requests:
        raise BadOption(f"{files[0]} has no such request")
    sys.stdout.write("\n".join(draw(request.span) for request in requests))
    return 0
