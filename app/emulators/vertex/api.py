"""The platform's REST API on a port of this machine, as the SDK and other clients call it.

Source: docs/spec/vertex.md section A3.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self, cast

import orjson

from trident.app.emulators.api import ApiConnection, ApiServer
from trident.app.emulators.container import ContainerFault, ContainerStream
from trident.app.emulators.report import BreachReport
from trident.app.emulators.vertex.control import control_call
from trident.app.emulators.vertex.direct import DirectCalls, GrpcApi, direct_answer, read_direct_request
from trident.app.emulators.vertex.endpoint import Endpoint
from trident.app.emulators.vertex.limits import (
    GoogleError,
    invalid,
    refused,
    request_too_large,
)
from trident.app.emulators.vertex.operation import Operation, Verb, addressed, read_operation
from trident.app.emulators.vertex.predictions import (
    RawRequest,
    passed_back,
    read_predict_request,
    read_raw_request,
    read_sdk_request,
    sdk_answer,
    sdk_answers,
)
from trident.app.emulators.vertex.project import Project

_OK = 200
_JSON = {"Content-Type": "application/json; charset=UTF-8"}
_EXPLAIN_NOTE = (
    "explain: the platform computes attributions itself, from the model's explanation spec and predictions for changed "
    "instances; here they are empty"
)
# A body in the SDK's envelope is larger by this factor and this number of bytes.
_SDK_FACTOR = 1.4
_SDK_OVERHEAD = 4096


class VertexApi(ApiServer):
    """Serves `project` on `port`, 0 for any free one."""

    def __init__(self, project: Project, port: int, report: BreachReport, say: Callable[[str], None]) -> None:
        self.project = project
        self.report = report
        self._say = say
        self._grpc: GrpcApi | None = None
        self._notes: set[str] = set()
        self._notes_lock = threading.Lock()
        super().__init__(port, _Connection, "prediction API")

    def __enter__(self) -> Self:
        super().__enter__()
        if self.project.has_direct_calls:
            self._grpc = GrpcApi(self._directly_called, self.count)
            self._say(f"gRPC calls are answered at {self._grpc.address}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._grpc is not None:
            self._grpc.stop()
        super().__exit__()

    @contextmanager
    def _directly_called(self, endpoint_id: str) -> Iterator[DirectCalls]:
        with self.project.called(endpoint_id) as endpoint:
            yield endpoint.direct

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")

    def note(self, text: str) -> None:
        """Print `text` the first time it is given. Any thread."""
        with self._notes_lock:
            is_new = text not in self._notes
            self._notes.add(text)
        if is_new:
            self._say(text)


class _Connection(ApiConnection):
    @property
    def _api(self) -> VertexApi:
        return cast(VertexApi, self.server.api)

    def refusal(self, text: str) -> Exception:
        return invalid(text)

    def _answer(self) -> None:
        try:
            if (change := control_call(self.command, self.path)) is not None:
                body = self.read_body(self._length())
                self._reply_json(change(self._api.project, body, self._api.address))
                return
            with ExitStack() as stack:
                self._answer_to(*self._called(stack))
        except GoogleError as error:
            self.reply(error.code, _JSON, error.body())

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    def _called(self, stack: ExitStack) -> tuple[Operation, Endpoint]:
        try:
            endpoint = stack.enter_context(self._api.project.called(*addressed(self.path)))
            return read_operation(self.command, self.path, endpoint.deployment), endpoint
        except GoogleError:
            self.drain(self._length())
            raise

    def _answer_to(self, operation: Operation, endpoint: Endpoint) -> None:
        body = self._body(operation, endpoint)
        self._api.count()
        if operation.verb in (Verb.PREDICT, Verb.EXPLAIN):
            self._predict(body, endpoint, is_explain=operation.verb is Verb.EXPLAIN)
        elif operation.verb is Verb.STREAM_RAW_PREDICT:
            self._stream(self._raw(body, operation, endpoint), operation, endpoint)
        elif operation.verb is Verb.DIRECT_RAW_PREDICT:
            self._reply_json(direct_answer(endpoint.direct.predict(*read_direct_request(body))))
        elif operation.verb is Verb.RAW_PREDICT:
            self._raw_predict(self._raw(body, operation, endpoint), operation, endpoint)
        else:
            answer = endpoint.invoke(self.command, operation.route, self._raw(body, operation, endpoint))
            self.reply(answer.status, passed_back(answer.headers, endpoint.deployment), answer.body)

    def _length(self) -> int:
        """The length of the body in bytes; 0 for a request without a body, which need not give a length."""
        return self.body_length() if self.command == "POST" or "Content-Length" in self.headers else 0

    def _body(self, operation: Operation, endpoint: Endpoint) -> bytes:
        most, length = endpoint.limits.body_bytes, self._length()
        has_envelope = operation.from_sdk or operation.verb is Verb.DIRECT_RAW_PREDICT
        limit = int(most * _SDK_FACTOR) + _SDK_OVERHEAD if has_envelope else most
        if length > limit:
            self.drain(length)
            raise self._too_large(length, most)
        return self.read_body(length)

    def _too_large(self, length: int, most: int) -> GoogleError:
        self._api.report.add(f"the caller sent a request body of {length} bytes, where the endpoint takes {most}")
        return request_too_large(length, most)

    def _predict(self, body: bytes, endpoint: Endpoint, *, is_explain: bool) -> None:
        if len(body) > endpoint.limits.body_bytes:
            raise self._too_large(len(body), endpoint.limits.body_bytes)
        request = read_predict_request(body, is_explain=is_explain)
        if is_explain:
            self._api.note(_EXPLAIN_NOTE)
        self._reply_json(endpoint.explain(request) if is_explain else endpoint.predict(request))

    def _raw(self, body: bytes, operation: Operation, endpoint: Endpoint) -> RawRequest:
        headers = self.headers.items()
        if not operation.from_sdk:
            return read_raw_request(headers, body)
        request = read_sdk_request(headers, body)
        if len(request.body) > endpoint.limits.body_bytes:
            raise self._too_large(len(request.body), endpoint.limits.body_bytes)
        return request

    def _raw_predict(self, request: RawRequest, operation: Operation, endpoint: Endpoint) -> None:
        answer = endpoint.raw_predict(request)
        headers = passed_back(answer.headers, endpoint.deployment)
        if not operation.from_sdk:
            self.reply(answer.status, headers, answer.body)
        elif answer.status != _OK:
            raise refused(answer.status, answer.text)
        else:
            self.reply(_OK, {**headers, **_JSON}, sdk_answer(answer.headers, answer.body))

    def _stream(self, request: RawRequest, operation: Operation, endpoint: Endpoint) -> None:
        with endpoint.stream(request) as stream:
            headers = passed_back(stream.headers, endpoint.deployment)
            if not operation.from_sdk:
                self._reply_stream(stream.status, headers, stream.parts())
            elif stream.status != _OK:
                raise refused(stream.status, self._whole(stream, endpoint))
            else:
                self._reply_stream(_OK, {**headers, **_JSON}, sdk_answers(stream.headers, stream.parts()))

    def _whole(self, stream: ContainerStream, endpoint: Endpoint) -> str:
        try:
            return stream.whole(endpoint.limits.body_bytes).text
        except ContainerFault as fault:
            self._api.report.add(f"a streamed answer: the container {fault}")
            return f"the container {fault}"

    def _reply_stream(self, status: int, headers: dict[str, str], parts: Iterator[bytes]) -> None:
        try:
            self.reply_in_chunks(status, headers, parts)
        except ContainerFault as fault:
            # The caller has received a part of the answer; the missing end shows that it broke off.
            self.close_connection = True
            self._api.report.add(f"a streamed answer: the container {fault}")

    def _reply_json(self, document: dict[str, Any]) -> None:
        self.reply(_OK, _JSON, orjson.dumps(document))
