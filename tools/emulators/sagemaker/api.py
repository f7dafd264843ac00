"""The runtime API on a port of this machine, as the SDK calls it, and the queue of asynchronous invocations.

Signatures are not checked, and calls may use any endpoint name.
Source: docs/spec/sagemaker.md sections A3, A6 and A10.
"""

from __future__ import annotations

import base64
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import boto3
import orjson
from botocore.exceptions import BotoCoreError, ClientError
from flask import Response, g, request
from werkzeug.exceptions import HTTPException, NotFound, RequestEntityTooLarge

from trident.core.errors import ConfigInvalid
from trident.tools.emulators.container import BreachReport, ClientClosed, ContainerFault, ContainerStream, size
from trident.tools.emulators.emulator import ApiServer, Reply
from trident.tools.emulators.sagemaker.api_model import problems
from trident.tools.emulators.sagemaker.endpoint import Endpoint, SageMakerLimits
from trident.tools.emulators.sagemaker.fleet import Fleet
from trident.tools.emulators.sagemaker.invocation import (
    COMPONENT,
    CUSTOM_ATTRIBUTES,
    INFERENCE_ID,
    LARGEST_PART,
    MEDIA_TYPE,
    NAME,
    OPENAI_PATH,
    PREFIX,
    ApiError,
    Invocation,
    check_token,
    endpoint_deleted,
    openai_error,
    passed_back,
    payload_part,
    read_invocation,
    stream_error,
    validation_error,
)
from trident.tools.emulators.sagemaker.transform import S3_SCHEME, Objects, joined

VARIANT = "AllTraffic"
ASYNC_HEADERS = ("InputLocation", "S3OutputPathExtension", "Filename", "RequestTTLSeconds", "InvocationTimeoutSeconds")
Manage = Callable[[Mapping[str, Any]], dict[str, Any]]
_TARGET = "X-Amz-Target"
_OPENAI = f"/openai{OPENAI_PATH}"
_OPERATIONS = (
    "InvokeEndpoint, InvokeEndpointWithResponseStream, InvokeEndpointWithBidirectionalStream, InvokeEndpointAsync "
    f"and of OpenAI's API {OPENAI_PATH}"
)


class RuntimeApi(ApiServer):
    def __init__(
        self,
        endpoint: Endpoint,
        port: int,
        limits: SageMakerLimits,
        report: BreachReport,
        queue: InvocationQueue | None = None,
        operations: Mapping[str, Manage] = MappingProxyType({}),
    ) -> None:
        """With `queue` the endpoint is asynchronous. `operations` are those of the API that manages endpoints."""
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
        self.route("POST", f"/endpoints/<name>{_OPENAI}", self._chat)
        self.route("POST", f"/endpoints/<name>/inference-components/<component>{_OPENAI}", self._chat)
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
            return Reply.of_parts(self._events(stream), 200, headers, held)

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
            return Reply.of_parts(answers, 200, {"Content-Type": MEDIA_TYPE}, held)

    def _chat(self, component: str = "") -> Response:
        """OpenAI's API. The container answers with a stream if the body asks for one."""
        if COMPONENT in request.headers:
            raise validation_error(f"The header {COMPONENT} is not taken here: the path names the component")
        check_token(request.headers.get("Authorization", ""))
        found = self._invocation(is_stream=False)
        headers = {**found.headers, COMPONENT: component} if component else found.headers
        invocation = Invocation(headers, found.body, found.target_model, path=OPENAI_PATH)
        try:
            is_stream = orjson.loads(found.body).get("stream") is True
        except (orjson.JSONDecodeError, AttributeError):
            is_stream = False  # the container refuses it
        if not is_stream:
            answer = self._endpoint.invoke(invocation)
            return Reply(answer.body, 200, passed_back(answer.headers, self._report))
        with ExitStack() as held:
            stream = held.enter_context(self._endpoint.stream(invocation))
            return Reply.of_parts(self._as_it_is(stream), 200, passed_back(stream.headers, self._report), held)

    def _as_it_is(self, stream: ContainerStream) -> Iterator[bytes]:
        with self._report.faults("a streamed answer"):
            yield from stream.parts()

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
        if not all(NAME.fullmatch(name) for name in values.values()):
            raise NotFound
        g.endpoint_name = values.pop("name")


def _identified(response: Response) -> Response:
    response.headers["x-amzn-RequestId"] = str(uuid.uuid4())
    if response.status_code == 200:
        response.headers["x-Amzn-Invoked-Production-Variant"] = VARIANT
    return response


def _error(error: ApiError) -> Response:
    if request.path.endswith(_OPENAI):
        status, body = openai_error(error)
        return Reply(body, status, {"Content-Type": "application/json"})
    headers = {"Content-Type": "application/json", "x-amzn-ErrorType": error.kind}
    return Reply(error.body(), error.status, headers)


def _unknown(error: HTTPException) -> Response:
    text = f"{request.method} '{request.path[:200]}' is not an operation of the emulator: {_OPERATIONS}"
    return _error(ApiError(error.code or 400, "ValidationError", text))


# --- asynchronous invocations: requests and answers are objects in S3

INLINE_BYTES = 128_000
_TTL_S, _TIMEOUT_S = 21600, 900
_LEAST_TTL_S, _MOST_TIMEOUT_S = 60, 3600
_AT_ONCE = 4
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Queued:
    """The answer to the caller of an asynchronous invocation."""

    inference_id: str
    output: str
    failure: str


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A call in the queue: `location` is "" for an input in the call."""

    invocation: Invocation
    location: str
    queued: Queued
    expires_s: float
    endpoint: str
    received: str


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class InvocationQueue:
    """Takes asynchronous invocations and has `fleet` answer them. `given` is the API's AsyncInferenceConfig.

    Requests wait while no instance is in service. Any thread; a context manager that ends with its queue unread.
    """

    def __init__(self, given: Mapping[str, Any], fleet: Fleet, limits: SageMakerLimits, report: BreachReport) -> None:
        """Raises ConfigInvalid for a configuration without a place for answers."""
        target = given.get("OutputConfig", {})
        self._output, self._failures = target.get("S3OutputPath", ""), target.get("S3FailurePath", "")
        if not self._output:
            raise ConfigInvalid("AsyncInferenceConfig has no OutputConfig.S3OutputPath")
        self._topics: Mapping[str, Any] = target.get("NotificationConfig", {})
        at_once = given.get("ClientConfig", {}).get("MaxConcurrentInvocationsPerInstance", _AT_ONCE)
        self._fleet, self._limits, self._report = fleet, limits, report
        self._objects = Objects()
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(at_once * max(1, fleet.desired), "async invocations")

    def close(self) -> None:
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)
        self._objects.close()

    def add(self, invocation: Invocation, given: Mapping[str, str], endpoint: str) -> Queued:
        """Queue a call of `endpoint`; `given` are its headers, without their prefix.

        Raises ApiError for a call that is invalid.
        """
        location = given.get("InputLocation", "")
        if bool(location) == bool(invocation.body):
            raise validation_error("Exactly one of InputLocation and Body must be given")
        if location and not location.startswith(S3_SCHEME):
            raise validation_error(f"The InputLocation {location[:200]} is not in S3")
        if len(invocation.body) > INLINE_BYTES:
            raise validation_error(f"The Body has more than {size(INLINE_BYTES)}; use InputLocation")
        ttl_s = _seconds(given, "RequestTTLSeconds", _LEAST_TTL_S, _TTL_S, _TTL_S)
        timeout_s = _seconds(given, "InvocationTimeoutSeconds", 1, _MOST_TIMEOUT_S, _TIMEOUT_S)
        inference_id = invocation.headers.get(INFERENCE_ID) or str(uuid.uuid4())
        extension = given.get("S3OutputPathExtension")
        folder = joined(self._output, extension) if extension else self._output
        output = joined(folder, given.get("Filename") or f"{uuid.uuid4()}.out")
        failure = joined(self._failures, f"{uuid.uuid4()}-error.out") if self._failures else ""
        queued = Queued(inference_id, output, failure)
        headers = {**invocation.headers, INFERENCE_ID: inference_id}
        waiting = Invocation(headers, invocation.body, within_s=timeout_s)
        self._pool.submit(self._run, _Waiting(waiting, location, queued, time.monotonic() + ttl_s, endpoint, _now()))
        return queued

    def _run(self, call: _Waiting) -> None:
        invocation, location, queued = call.invocation, call.location, call.queued
        try:
            while not self._fleet.current and not self._stopped.is_set() and time.monotonic() < call.expires_s:
                self._stopped.wait(_POLL_S)
            if time.monotonic() >= call.expires_s:
                raise validation_error("The request was in the queue for longer than its RequestTTLSeconds")
            body = self._objects.read(location) if location else invocation.body
            if len(body) > self._limits.body_bytes:
                raise validation_error(f"The object {location} has more than {size(self._limits.body_bytes)}")
            answer = self._fleet.invoke(Invocation(invocation.headers, body, within_s=invocation.within_s))
            content_type = passed_back(answer.headers, self._report).get("Content-Type", "application/octet-stream")
            self._objects.write(queued.output, answer.body, content_type)
            self._publish(call, answer.body, content_type)
        except ClientClosed:
            pass  # the emulator ends, and with it the queue
        except (ApiError, ConfigInvalid) as error:
            content = error.message.encode()
            try:
                if queued.failure:
                    self._objects.write(queued.failure, content, "text/plain")
            except ConfigInvalid as refused:
                self._report.add(f"an asynchronous answer was lost: {refused.message}")
            self._publish(call, content, "text/plain", error.message)

    def _publish(self, call: _Waiting, body: bytes, content_type: str, reason: str = "") -> None:
        """Tell the topic of calls that succeeded, or with a `reason` of those that failed, about the end of one."""
        topic = self._topics.get("ErrorTopic" if reason else "SuccessTopic", "")
        if not topic:
            return
        message: dict[str, Any] = {
            "awsRegion": topic.split(":")[3],
            "eventTime": _now(),
            "receivedTime": call.received,
            "invocationStatus": "Failed" if reason else "Completed",
            **({"failureReason": reason} if reason else {}),
            "requestParameters": {
                "contentType": call.invocation.headers.get("Content-Type", ""),
                "endpointName": call.endpoint,
                **({"inputLocation": call.location} if call.location else {}),
            },
            "responseParameters": {
                "contentType": content_type,
                "outputLocation": call.queued.failure if reason else call.queued.output,
            },
            "inferenceId": call.queued.inference_id,
            "eventVersion": "1.0",
            "eventSource": "aws:sagemaker",
            "eventName": "InferenceResult",
        }
        included = "ERROR_NOTIFICATION_TOPIC" if reason else "SUCCESS_NOTIFICATION_TOPIC"
        if included in self._topics.get("IncludeInferenceResponseIn", ()) and len(body) <= INLINE_BYTES:
            content = base64.b64encode(body).decode()
            message["responseBody"] = {"content": content, "encoding": "BASE64", "contentType": content_type}
        try:
            with closing(boto3.session.Session(region_name=message["awsRegion"]).client("sns")) as sns:
                sns.publish(TopicArn=topic, Message=orjson.dumps(message).decode())
        except (ClientError, BotoCoreError) as error:
            self._report.add(f"the message to {topic} was lost: {error}")


def _seconds(given: Mapping[str, str], name: str, least: int, most: int, default: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and least <= int(text[:9]) <= most):
        raise validation_error(f"{name} must be {least} to {most}, not {text[:20]}")
    return int(text)
