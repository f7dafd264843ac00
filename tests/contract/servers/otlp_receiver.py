"""A collector on the loopback that decodes what is sent over OTLP/HTTP."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from tests.contract.servers.ports import HOST


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


class OtlpReceiver:
    """Collects spans until the context ends. With `status` other than 200 it refuses all, and counts them as nothing.

    `hold` makes it answer only when `release` is called.
    """

    def __init__(self, *, status: int = 200, hold: bool = False) -> None:
        self.spans: list[ReceivedSpan] = []
        self.requests = 0
        self.status = status
        self._may_answer = threading.Event()
        if not hold:
            self._may_answer.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests += 1
                receiver._may_answer.wait(60)
                if receiver.status == 200:
                    receiver.spans += decode(body)
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_port}/v1/traces"

    def release(self) -> None:
        self._may_answer.set()

    def __enter__(self) -> OtlpReceiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


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
