"""The runtime API on a port of this machine, as the SDK calls it, and the operations that scale what it serves.

Signatures are not checked, and calls may use any endpoint name.
Source: docs/spec/sagemaker.md section A3 for the headers.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, BinaryIO, cast

import orjson

from trident.app.emulators.api import ApiConnection, ApiServer
from trident.app.emulators.container import ClientClosed, ContainerFault, ContainerStream
from trident.app.emulators.report import BreachReport, size
from trident.app.emulators.sagemaker.api_model import problems
from trident.app.emulators.sagemaker.endpoint import Endpoint, PlatformLimits
from trident.app.emulators.sagemaker.errors import ApiError, endpoint_deleted, validation_error
from trident.app.emulators.sagemaker.invocation import (
    CUSTOM_ATTRIBUTES,
    LARGEST_PART,
    MEDIA_TYPE,
    PREFIX,
    passed_back,
    payload_part,
    read_invocation,
    stream_error,
)
from trident.app.emulators.sagemaker.queued import InvocationQueue, Queued

VARIANT = "AllTraffic"
ASYNC_HEADERS = ("InputLocation", "S3OutputPathExtension", "Filename", "RequestTTLSeconds", "InvocationTimeoutSeconds")
Manage = Callable[[Mapping[str, Any]], dict[str, Any]]
_TARGET = "X-Amz-Target"
_WRONG_KIND = {
    False: "Endpoint is not asynchronous: use InvokeEndpoint",
    True: "Endpoint is asynchronous: use InvokeEndpointAsync",
}
_LONGEST_NAME = 63


class _Operation(StrEnum):
    """The last part of the operation's path."""

    INVOKE = "invocations"
    INVOKE_WITH_STREAM = "invocations-response-stream"
    INVOKE_ASYNC = "async-invocations"
    INVOKE_WITH_BIDIRECTIONAL_STREAM = "invocations-bidirectional-stream"


_PATH = re.compile(rf"/endpoints/([a-zA-Z0-9](?:-*[a-zA-Z0-9])*)/({'|'.join(_Operation)})")


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
        self.endpoint = endpoint
        self.queue = queue
        self.operations = operations
        self.limits = limits
        self.report = report
        super().__init__(port, _Connection, "runtime API")


class _Connection(ApiConnection):
    @property
    def _api(self) -> RuntimeApi:
        return cast(RuntimeApi, self.server.api)

    def refusal(self, text: str) -> Exception:
        return validation_error(text)

    def do_POST(self) -> None:
        try:
            if _TARGET in self.headers:
                self._manage(self.headers[_TARGET])
                return
            operation = self._operation()
            if operation is _Operation.INVOKE_WITH_BIDIRECTIONAL_STREAM:
                self._relay()
                return
            body = self._body()
            invocation = read_invocation(dict(self.headers), body, is_stream=operation is not _Operation.INVOKE)
            self._api.count()
            if (operation is _Operation.INVOKE_ASYNC) != (self._api.queue is not None):
                raise validation_error(_WRONG_KIND[self._api.queue is not None])
            if self._api.queue is not None:
                self._reply_queued(self._api.queue.add(invocation, dict(self._async_headers()), self._endpoint_name))
            elif operation is _Operation.INVOKE:
                answer = self._api.endpoint.invoke(invocation)
                self.reply(200, self._passed_back(answer.headers), answer.body)
            else:
                with self._api.endpoint.stream(invocation) as stream:
                    self._reply_stream(stream)
        except ApiError as error:
            self._reply_error(error)
        except ClientClosed:
            self._reply_error(endpoint_deleted())

    def _manage(self, target: str) -> None:
        """Call an operation of the API that manages endpoints; its parameters and answer are JSON."""
        name = target.rpartition(".")[2]
        body = self.read_body(self.body_length())
        operation = self._api.operations.get(name)
        if operation is None:
            known = ", ".join(self._api.operations) or "none for this endpoint"
            raise validation_error(f"'{name}' is not an operation of the emulator, which knows {known}")
        try:
            parameters = orjson.loads(body)
            found = problems("sagemaker", name, parameters)
        except (orjson.JSONDecodeError, AttributeError) as error:
            raise validation_error(f"the parameters are not a JSON object: {error}") from None
        if found:
            raise validation_error("; ".join(found))
        self.reply(200, {"Content-Type": "application/x-amz-json-1.1"}, orjson.dumps(operation(parameters)))

    def _async_headers(self) -> Iterator[tuple[str, str]]:
        for name in ASYNC_HEADERS:
            if PREFIX + name in self.headers:
                yield name, self.headers[PREFIX + name]

    def _reply_queued(self, queued: Queued) -> None:
        headers = {"Content-Type": "application/json", f"{PREFIX}OutputLocation": queued.output}
        if queued.failure:
            headers[f"{PREFIX}FailureLocation"] = queued.failure
        self.reply(202, headers, orjson.dumps({"InferenceId": queued.inference_id}))

    def do_GET(self) -> None:
        self._reply_error(
            validation_error("The runtime API is called with POST /endpoints/NAME/invocations"), status=404
        )

    def _relay(self) -> None:
        """Pass the events of the body to the container, and its frames back, until one of them ends."""
        self.close_connection = True
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            raise validation_error("the body of a bidirectional stream comes in chunks")
        self._api.count()
        with self._api.endpoint.bidirectional(dict(self.headers)) as stream:
            self.connection.settimeout(self._api.limits.bidirectional_s)
            answers = stream.answers(cast(BinaryIO, self.rfile), self._api.report)
            self.reply_in_chunks(200, {"Content-Type": MEDIA_TYPE}, answers)

    @property
    def _endpoint_name(self) -> str:
        found = _PATH.fullmatch(self.path.partition("?")[0])
        return found[1] if found is not None else ""

    def _operation(self) -> _Operation:
        found = _PATH.fullmatch(self.path.partition("?")[0])
        if found is None or len(found[1]) > _LONGEST_NAME:
            self.drain(self.body_length())
            raise validation_error(
                f"'{self.path[:200]}' is not an operation of the emulator: InvokeEndpoint, "
                "InvokeEndpointWithResponseStream, InvokeEndpointWithBidirectionalStream and InvokeEndpointAsync"
            )
        return _Operation(found[2])

    def _body(self) -> bytes:
        length, most = self.body_length(), self._api.limits.body_bytes
        if length > most:
            self.drain(length)
            text = f"a request body of {length} bytes, where the platform takes at most {size(most)}"
            self._api.report.add(f"the caller sent {text}")
            raise validation_error(text)
        return self.read_body(length)

    def _passed_back(self, headers: list[tuple[str, str]]) -> dict[str, str]:
        return passed_back(headers, self._api.report)

    def _reply_error(self, error: ApiError, status: int = 0) -> None:
        headers = {"Content-Type": "application/json", "x-amzn-ErrorType": error.kind}
        self.reply(status or error.status, headers, error.body())

    def _reply_stream(self, stream: ContainerStream) -> None:
        passed = self._passed_back(stream.headers)
        headers = {"Content-Type": MEDIA_TYPE}
        if "Content-Type" in passed:
            headers[PREFIX + "Content-Type"] = passed["Content-Type"]
        if CUSTOM_ATTRIBUTES in passed:
            headers[CUSTOM_ATTRIBUTES] = passed[CUSTOM_ATTRIBUTES]
        self.reply_in_chunks(200, headers, self._events(stream))

    def _events(self, stream: ContainerStream) -> Iterator[bytes]:
        try:
            for part in stream.parts():
                for begin in range(0, len(part), LARGEST_PART):
                    yield payload_part(part[begin : begin + LARGEST_PART])
        except ContainerFault as fault:
            self._api.report.add(f"a streamed answer: the container {fault}")
            code = "ModelInvocationTimeExceeded" if fault.is_late else "StreamBroken"
            yield stream_error(f"the container {fault}", code)

    def send_head(self, status: int, headers: Mapping[str, str]) -> None:
        variant = {"x-Amzn-Invoked-Production-Variant": VARIANT} if status == 200 else {}
        super().send_head(status, {**headers, **variant, "x-amzn-RequestId": str(uuid.uuid4())})
