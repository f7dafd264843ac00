"""The runtime API on a port of this machine, as the SDK speaks it.

Nobody's signature is checked, and an endpoint may be called by any name.
Source: spec/sagemaker.md section A3 for the headers.
"""

from __future__ import annotations

import re
import socketserver
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from adapters.sagemaker.emulator.api_error import ApiError, validation_error
from adapters.sagemaker.emulator.breach_report import BreachReport
from adapters.sagemaker.emulator.container_client import HOST, ContainerFault, ContainerStream
from adapters.sagemaker.emulator.endpoint import Endpoint
from adapters.sagemaker.emulator.event_stream import LARGEST_PART, MEDIA_TYPE, payload_part, stream_error
from adapters.sagemaker.emulator.invocation import CUSTOM_ATTRIBUTES, PREFIX, passed_back, read_invocation
from adapters.sagemaker.emulator.limits import PlatformLimits, size

VARIANT = "AllTraffic"
_PATH = re.compile(r"/endpoints/([a-zA-Z0-9](?:-*[a-zA-Z0-9])*)/(invocations|invocations-response-stream)")
_LONGEST_NAME = 63
_PIECE = 1 << 16
_IDLE_S = 120.0
# How long its end may take.
_POLL_S = 0.05
# What is too large is still received, so that the caller gets to read why it is refused; within reason.
_DRAINED_AT_MOST = 1 << 30


class ApiServer:
    """Serves `endpoint` on `port`, 0 for any. A context manager; a thread for each connection."""

    def __init__(self, endpoint: Endpoint, port: int, limits: PlatformLimits, report: BreachReport) -> None:
        self.endpoint = endpoint
        self.limits = limits
        self.report = report
        self._lock = threading.Lock()
        self._invocations = 0
        self._server = _Listener((HOST, port), self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=[_POLL_S], name="runtime API", daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_address[1]}"

    @property
    def invocations(self) -> int:
        with self._lock:
            return self._invocations

    def count(self) -> None:
        with self._lock:
            self._invocations += 1

    def __enter__(self) -> ApiServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], api: ApiServer) -> None:
        self.api = api
        super().__init__(address, _Connection)

    def server_bind(self) -> None:
        """As HTTPServer, but that asks for the machine's name, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that goes away is no error of ours."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    server: _Listener

    def do_POST(self) -> None:
        try:
            operation = self._operation()
            body = self._body()
            invocation = read_invocation(dict(self.headers), body, is_stream=operation != "invocations")
            self.server.api.count()
            if operation == "invocations":
                answer = self.server.api.endpoint.invoke(invocation)
                self._reply(200, self._passed_back(answer.headers), answer.body)
            else:
                with self.server.api.endpoint.stream(invocation) as stream:
                    self._reply_stream(stream)
        except ApiError as error:
            headers = {"Content-Type": "application/json", "x-amzn-ErrorType": error.kind}
            self._reply(error.status, headers, error.body())

    def do_GET(self) -> None:
        error = validation_error("The runtime API is called with POST /endpoints/NAME/invocations")
        self._reply(404, {"Content-Type": "application/json", "x-amzn-ErrorType": error.kind}, error.body())

    def log_message(self, format: str, *args: Any) -> None:
        """Calls are counted, not logged: the container has a log of its own."""

    def _operation(self) -> str:
        found = _PATH.fullmatch(self.path.partition("?")[0])
        if found is None or len(found[1]) > _LONGEST_NAME:
            self._drain(self._length())
            raise validation_error(
                f"'{self.path[:200]}' is none of the emulator's operations: InvokeEndpoint and "
                "InvokeEndpointWithResponseStream"
            )
        return found[2]

    def _body(self) -> bytes:
        length, most = self._length(), self.server.api.limits.body_bytes
        if length > most:
            self._drain(length)
            text = f"a request body of {length} bytes, where the platform takes at most {size(most)}"
            self.server.api.report.add(f"the caller sent {text}")
            raise validation_error(text)
        return self.rfile.read(length)

    def _length(self) -> int:
        text = self.headers.get("Content-Length", "")
        if text.isascii() and text.isdigit() and len(text) <= len(str(2**63)):
            return int(text)
        self.close_connection = True
        raise validation_error("the request must say the length of its body")

    def _drain(self, length: int) -> None:
        if length > _DRAINED_AT_MOST:
            self.close_connection = True
            return
        while length > 0:
            piece = self.rfile.read(min(length, _PIECE))
            if not piece:
                break
            length -= len(piece)

    def _passed_back(self, headers: list[tuple[str, str]]) -> dict[str, str]:
        return passed_back(headers, self.server.api.report)

    def _reply(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self._head(status, {**headers, "Content-Length": str(len(body))})
        self.wfile.write(body)

    def _reply_stream(self, stream: ContainerStream) -> None:
        passed = self._passed_back(stream.headers)
        headers = {"Content-Type": MEDIA_TYPE, "Transfer-Encoding": "chunked"}
        if "Content-Type" in passed:
            headers[PREFIX + "Content-Type"] = passed["Content-Type"]
        if CUSTOM_ATTRIBUTES in passed:
            headers[CUSTOM_ATTRIBUTES] = passed[CUSTOM_ATTRIBUTES]
        self._head(200, headers)
        for event in self._events(stream):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")

    def _events(self, stream: ContainerStream) -> Iterator[bytes]:
        try:
            for part in stream.parts():
                for begin in range(0, len(part), LARGEST_PART):
                    yield payload_part(part[begin : begin + LARGEST_PART])
        except ContainerFault as fault:
            self.server.api.report.add(f"a streamed answer: the container {fault}")
            code = "ModelInvocationTimeExceeded" if fault.is_late else "StreamBroken"
            yield stream_error(f"the container {fault}", code)

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status == 200:
            self.send_header("x-Amzn-Invoked-Production-Variant", VARIANT)
        self.send_header("x-amzn-RequestId", str(uuid.uuid4()))
        self.end_headers()
