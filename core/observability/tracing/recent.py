"""The last traces, kept in memory for the console."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from trident.core.observability.tracing.files import Destination
from trident.core.observability.tracing.settings import Setting
from trident.core.observability.tracing.trace import Trace, TraceEvent


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


class RecentTraces:
    """Implements Destination: keeps the last traces without their tensors, and passes all on to `destination`."""

    def __init__(self, most: int, destination: Destination | None) -> None:
        self._destination = destination
        self._kept: deque[tuple[TraceRecord, ...]] = deque(maxlen=most)

    def write(self, traces: Sequence[Trace]) -> None:
        if self._kept.maxlen:
            self._kept.extend(tuple(map(_record, root.family())) for root in traces)
        if self._destination is not None:
            self._destination.write(traces)

    def finish(self, setting: Setting) -> None:
        if self._destination is not None:
            self._destination.finish(setting)

    def close(self) -> None:
        if self._destination is not None:
            self._destination.close()

    def last(self) -> list[tuple[TraceRecord, ...]]:
        """Each request with those that it led to; the last first. Any thread."""
        return list(self._kept)[::-1]


def _record(trace: Trace) -> TraceRecord:
    depth, above = 0, trace.parent
    while above is not None:
        depth, above = depth + 1, above.parent
    return TraceRecord(
        number=trace.number,
        parent=trace.parent.number if trace.parent is not None else 0,
        depth=depth,
        model=trace.model_name,
        version=trace.model_version,
        request_id=trace.request_id[:256],
        events=tuple(sorted((*trace.ahead, *trace.events, *trace.behind), key=_when)),
    )


def _when(event: TraceEvent) -> int:
    return event[1]
