"""The runtime API on a port of this machine, as the SDK calls it, and the operations that scale what it serves.

Signatures are not checked, and calls may use any endpoint name.
Source: docs/spec/sagemaker.md section A3 for the headers.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any

import orjson
from flask import Response, g, request
from werkzeug.exceptions import HTTPException, NotFound, RequestEntityTooLarge

from trident.app.emulators.container import BreachReport, ClientClosed, ContainerFault, ContainerStream, size
from trident.app.emulators.emulator import ApiServer, Reply
from trident.app.emulators.sagemaker.api_model import problems
from trident.app.emulators.sagemaker.endpoint import Endpoint, PlatformLimits
from trident.app.emulators.sagemaker.invocation import (
    CUSTOM_ATTRIBUTES,
    LARGEST_PART,
    MEDIA_TYPE,
    NAME,
    PREFIX,
    ApiError,
    Invocation,
    endpoint_deleted,
    passed_back,
    payload_part,
    read_invocation,
    stream_error,
    validation_error,
)
from trident.app.emulators.sagemaker.queued import InvocationQueue

VARIANT = "AllTraffic"
ASYNC_HEADERS = ("InputLocation", "S3OutputPathExtension", "Filename", "RequestTTLSeconds", "InvocationTimeoutSeconds")
Manage = Callable[[Mapping[str, Any]], dict[str, Any]]
_TARGET = "X-Amz-Target"
_OPERATIONS = (
    "InvokeEndpoint, InvokeEndpointWithResponseStream, InvokeEndpointWithBidirectionalStream and InvokeEndpointAsync"
)


class RuntimeApi(ApiServer):
    """Serves `endpoint` on `port`, 0 for any free one."""

    def __init__(
        self,
        endpoint: Endpoint,
        port: int,
        limits: PlatformLimits,
        report: BreachReport,
        queue: InvocationQueue | None = None,
        operations: Mapping[str, Manage] = MappingProxyType({}),
    ) -> None:
        """With `queue` the endpoint is asynchronous. `operations` are those of SageMaker's API that manages endpoints.

        Raises ConfigInvalid for a port that is in use or that needs privileges.
        """
        super().__init__(port, "runtime API")
        self._endpoint = endpoint
        self._queue = queue
        self._operations = operations
        self._limits = limits
        self._report = report
        self.route("POST", "/", self._manage)
        self.route("POST", "/endpoints/<name>/invocations", self._invoke)
        self.route("POST", "/endpoints/<name>/invocations-response-stream", self._stream)
        self.route("POST", "/endpoints/<name>/async-invocations", self._invoke_later)
        self.route("POST", "/endpoints/<name>/invocations-bidirectional-stream", self._relay)
        self.application.url_value_preprocessor(_take_name)
        self.application.after_request(_identified)
        self.application.register_error_handler(ApiError, _error)
        self.application.register_error_handler(ClientClosed, lambda _: _error(endpoint_deleted()))
        self.application.register_error_handler(HTTPException, _unknown)

    def _invoke(self) -> Response:
        answer = self._endpoint.invoke(self._invocation(is_stream=False))
        return Reply(answer.body, 200, passed_back(answer.headers, self._report))

    def _stream(self) -> Response:
        invocation = self._invocation(is_stream=True)
        with ExitStack() as held:
            stream = held.enter_context(self._endpoint.stream(invocation))
            passed = passed_back(stream.headers, self._report)
            headers = {"Content-Type": MEDIA_TYPE}
            if "Content-Type" in passed:
                headers[PREFIX + "Content-Type"] = passed["Content-Type"]
            if CUSTOM_ATTRIBUTES in passed:
                headers[CUSTOM_ATTRIBUTES] = passed[CUSTOM_ATTRIBUTES]
            reply = Reply.of_parts(self._events(stream), 200, headers)
            reply.call_on_close(held.pop_all().close)
        return reply

    def _events(self, stream: ContainerStream) -> Iterator[bytes]:
        try:
            for part in stream.parts():
                for begin in range(0, len(part), LARGEST_PART):
                    yield payload_part(part[begin : begin + LARGEST_PART])
        except ContainerFault as fault:
            self._report.add(f"a streamed answer: the container {fault}")
            code = "ModelInvocationTimeExceeded" if fault.is_late else "StreamBroken"
            yield stream_error(f"the container {fault}", code)

    def _invoke_later(self) -> Response:
        invocation = self._invocation(is_stream=True, is_async=True)
        given = {name: request.headers[PREFIX + name] for name in ASYNC_HEADERS if PREFIX + name in request.headers}
        assert self._queue is not None
        queued = self._queue.add(invocation, given, g.endpoint_name)
        headers = {"Content-Type": "application/json", f"{PREFIX}OutputLocation": queued.output}
        if queued.failure:
            headers[f"{PREFIX}FailureLocation"] = queued.failure
        return Reply(orjson.dumps({"InferenceId": queued.inference_id}), 202, headers)

    def _relay(self) -> Response:
        """Pass the events of the body to the container, and its frames back, until one of them ends."""
        if "wsgi.input_terminated" not in request.environ:
            raise validation_error("the body of a bidirectional stream comes in chunks")
        self.count()
        request.environ["werkzeug.socket"].settimeout(self._limits.bidirectional_s)
        with ExitStack() as held:
            stream = held.enter_context(self._endpoint.bidirectional(dict(request.headers)))
            answers = stream.answers(request.environ["wsgi.input"], self._report)
            reply = Reply.of_parts(answers, 200, {"Content-Type": MEDIA_TYPE})
            reply.call_on_close(held.pop_all().close)
        return reply

    def _invocation(self, *, is_stream: bool, is_async: bool = False) -> Invocation:
        request.max_content_length = self._limits.body_bytes
        try:
            body = request.get_data()
        except RequestEntityTooLarge:
            length = f"{request.content_length or 'too many'} bytes"
            text = f"a request body of {length}, where the platform takes at most {size(self._limits.body_bytes)}"
            self._report.add(f"the caller sent {text}")
            raise validation_error(text) from None
        invocation = read_invocation(dict(request.headers), body, is_stream=is_stream)
        self.count()
        if is_async and self._queue is None:
            raise validation_error("Endpoint is not asynchronous: use InvokeEndpoint")
        if self._queue is not None and not is_async:
            raise validation_error("Endpoint is asynchronous: use InvokeEndpointAsync")
        return invocation

    def _manage(self) -> Response:
        """Call an operation of the API that manages endpoints; its parameters and answer are JSON."""
        if _TARGET not in request.headers:
            raise NotFound
        name = request.headers[_TARGET].rpartition(".")[2]
        operation = self._operations.get(name)
        if operation is None:
            known = ", ".join(self._operations) or "none for this endpoint"
            raise validation_error(f"'{name}' is not an operation of the emulator, which knows {known}")
        try:
            parameters = orjson.loads(request.get_data())
            found = problems("sagemaker", name, parameters)
        except (orjson.JSONDecodeError, AttributeError) as error:
            raise validation_error(f"the parameters are not a JSON object: {error}") from None
        if found:
            raise validation_error("; ".join(found))
        return Reply(orjson.dumps(operation(parameters)), 200, {"Content-Type": "application/x-amz-json-1.1"})


def _take_name(view: str | None, values: dict[str, Any] | None) -> None:
    """Keep the endpoint's name in the path for the calls that need it."""
    if values:
        g.endpoint_name = values.pop("name")
        if not NAME.fullmatch(g.endpoint_name):
            raise NotFound


def _identified(response: Response) -> Response:
    response.headers["x-amzn-RequestId"] = str(uuid.uuid4())
    if response.status_code == 200:
        response.headers["x-Amzn-Invoked-Production-Variant"] = VARIANT
    return response


def _error(error: ApiError) -> Response:
    headers = {"Content-Type": "application/json", "x-amzn-ErrorType": error.kind}
    return Reply(error.body(), error.status, headers)


def _unknown(error: HTTPException) -> Response:
    text = f"{request.method} '{request.path[:200]}' is not an operation of the emulator: {_OPERATIONS}"
    return _error(ApiError(error.code or 400, "ValidationError", text))
