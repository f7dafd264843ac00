"""A collector on the loopback that decodes OTLP/HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.contract.servers.collector import Collector


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """Numbers are hexadecimal; `parent` is "" for a span without one. `times` are by the names of the events."""

    name: str
    trace: str
    number: str
    parent: str
    state: str
    kind: int
    start_ns: int
    end_ns: int
    times: dict[str, int]
    attributes: dict[str, Any]
    resource: dict[str, Any]
    scope: str


class OtlpReceiver(Collector):
    path = "/v1/traces"

    def __init__(self, *, status: int = 200, hold: bool = False) -> None:
        super().__init__(status=status, hold=hold)
        self.spans: list[ReceivedSpan] = []

    def take(self, headers: Mapping[str, str], body: bytes) -> None:
        self.spans += decode(body)


def decode(body: bytes) -> list[ReceivedSpan]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    return [
        ReceivedSpan(
            name=span.name,
            trace=span.trace_id.hex(),
            number=span.span_id.hex(),
            parent=span.parent_span_id.hex(),
            state=span.trace_state,
            kind=span.kind,
            start_ns=span.start_time_unix_nano,
            end_ns=span.end_time_unix_nano,
            times={event.name: event.time_unix_nano for event in span.events},
            attributes=_values(span.attributes),
            resource=_values(found.resource.attributes),
            scope=scoped.scope.name,
        )
        for found in ExportTraceServiceRequest.FromString(body).resource_spans
        for scoped in found.scope_spans
        for span in scoped.spans
    ]


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
