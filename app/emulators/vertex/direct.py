"""directRawPredict: the platform passes the bytes of one gRPC message to the container, and those of the answer back.

Callers reach it as a call of the REST API, and over gRPC on a port of its own, where streamDirectRawPredict passes on a
stream of messages. The container listens on the first of the model's `grpcPorts`.
Source: docs/spec/vertex.md section A3.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import grpc
import orjson
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from trident.app.emulators.container import HOST, BreachReport, seconds
from trident.app.emulators.vertex.limits import (
    STATUSES,
    CanonicalCode,
    Deployment,
    GoogleError,
    PlatformLimits,
    invalid,
    request_too_large,
    response_too_large,
)

_THREADS = 16
_NO_LIMIT = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_METHOD = re.compile(r"(/[\w.]+/\w+)/?", re.ASCII)  # the platform's documents end it with a slash
_SERVICE = re.compile(r"/google\.cloud\.aiplatform\.v1(?:beta1)?\.PredictionService/(\w+)")
_HEALTH, _SERVING = "/grpc.health.v1.Health/Check", b"\x08\x01"
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_HTTP_STATUSES = {code: status for status, code in STATUSES.items()} | {CanonicalCode.FAILED_PRECONDITION: 400}


class DirectCalls:
    """Passes messages on to the gRPC port of the container while `has_traffic` returns true. Any thread."""

    def __init__(
        self, deployment: Deployment, limits: PlatformLimits, report: BreachReport, has_traffic: Callable[[], bool]
    ) -> None:
        self._deployment = deployment
        self._limits = limits
        self._report = report
        self._has_traffic = has_traffic
        # It connects at the first call.
        self._channel = grpc.insecure_channel(f"{HOST}:{deployment.grpc_port}", options=_NO_LIMIT)

    def close(self) -> None:
        self._channel.close()

    def check_health(self) -> None:
        """Report a container whose gRPC port does not answer the platform's health check."""
        try:
            answer = self._channel.unary_unary(_HEALTH)(b"", timeout=self._limits.health_s, wait_for_ready=True)
            fault = "" if answer == _SERVING else "with another status than SERVING"
        except grpc.RpcError as error:
            fault = f"with {error.code().name}"
        if fault:
            self._report.add(f"gRPC port {self._deployment.grpc_port}: the container answered {_HEALTH[1:]} {fault}")

    def predict(self, method: str, message: bytes) -> bytes:
        """The bytes of the answer to one message. Raises GoogleError."""
        call = self._channel.unary_unary(self._method(method))
        with self._faults():
            answer: bytes = call(self._checked(message), timeout=self._limits.inference_s)
        return self._checked_answer(answer)

    def stream(self, method: str, messages: Iterator[bytes]) -> Iterator[bytes]:
        """The bytes of each answer to a stream of messages. Raises GoogleError."""
        call = self._channel.stream_stream(self._method(method))
        with self._faults():
            for answer in call(map(self._checked, messages), timeout=self._limits.inference_s):
                yield self._checked_answer(answer)

    def _method(self, text: str) -> str:
        found = _METHOD.fullmatch(text)
        if found is None:
            raise invalid("Invalid value at 'method_name': it has the form /inference.GRPCInferenceService/ModelInfer")
        if not self._has_traffic():
            raise GoogleError(503, "The model is unhealthy: the health probes of its container fail")
        return found[1]

    def _checked(self, message: bytes) -> bytes:
        if len(message) > self._limits.body_bytes:
            raise request_too_large(len(message), self._limits.body_bytes)
        return message

    def _checked_answer(self, answer: bytes) -> bytes:
        if len(answer) > self._limits.body_bytes:
            self._report.add(f"a direct call: the container answered with {len(answer)} bytes")
            raise response_too_large(self._deployment, self._limits.body_bytes)
        return answer

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Turn the errors of a call to the container into GoogleError."""
        try:
            yield
        except grpc.RpcError as error:
            number, code = error.code().value[0], CanonicalCode.INTERNAL
            if number in set(CanonicalCode):
                code = CanonicalCode(number)
            if code is CanonicalCode.DEADLINE_EXCEEDED:
                limit = seconds(self._limits.inference_s)
                self._report.add(f"a direct call: the container did not answer within {limit}")
            raise GoogleError(_HTTP_STATUSES[code], error.details() or code.name, code) from None


def read_direct_request(body: bytes) -> tuple[str, bytes]:
    """The method and the message of a call of the REST API. Raises GoogleError for a body that has neither."""
    try:
        document = orjson.loads(body)
        method, text = document["methodName"], document["input"]
        return str(method), base64.b64decode(text.translate({ord("-"): "+", ord("_"): "/"}), validate=True)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, binascii.Error, ValueError):
        raise invalid("Invalid JSON payload received. There must be a 'methodName', and an 'input' in base64") from None


def direct_answer(output: bytes) -> dict[str, str]:
    return {"output": base64.b64encode(output).decode()}


def no_direct_predict(name: str) -> GoogleError:
    """The error for a call of typed tensors, which only the platform's own model servers take."""
    return GoogleError(
        501,
        f"{name} is for the platform's own products and frameworks: call directRawPredict, whose input is a message of "
        "the container's own service",
    )


def _message(name: str, **fields: int) -> Any:
    """A message class with these fields, numbered from 1, by their types."""
    file = FileDescriptorProto(name=f"{name}.proto", syntax="proto3")
    message = file.message_type.add(name=name)
    for number, (field, kind) in enumerate(fields.items(), 1):
        message.field.add(name=field, number=number, type=kind, label=FieldDescriptorProto.LABEL_OPTIONAL)
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(name))


# The API's messages, of the calls with and without a stream alike; its package is not one that the server needs.
_TEXT, _BYTES = FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_BYTES
_Request = _message("DirectRawPredictRequest", endpoint=_TEXT, method_name=_TEXT, input=_BYTES)
_Response = _message("DirectRawPredictResponse", output=_BYTES)


class GrpcApi:
    """Serves the direct calls over gRPC on a free port of this machine, from construction until `stop`."""

    def __init__(self, called: Callable[[str], AbstractContextManager[DirectCalls]], count: Callable[[], None]) -> None:
        """`called` gives what answers a call of the endpoint with this id."""
        self._called = called
        self._count = count
        self._server = grpc.server(ThreadPoolExecutor(_THREADS, "gRPC API"), handlers=[self], options=_NO_LIMIT)
        self.address = f"{HOST}:{self._server.add_insecure_port(f'{HOST}:0')}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        found = _SERVICE.fullmatch(details.method)
        codec = (_Request.FromString, _Response.SerializeToString)
        if found is None:
            return None
        if found[1] == "DirectRawPredict":
            return grpc.unary_unary_rpc_method_handler(self._predict, *codec)
        if found[1] == "StreamDirectRawPredict":
            return grpc.stream_stream_rpc_method_handler(self._stream, *codec)
        return grpc.unary_unary_rpc_method_handler(partial(self._other, found[1]))

    def _predict(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._count()
        try:
            with self._called(_last(request.endpoint)) as calls:
                return _Response(output=calls.predict(request.method_name, request.input))
        except GoogleError as error:
            _abort(context, error)

    def _stream(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        """The first request names the endpoint and the method, and may have no input."""
        self._count()
        try:
            first = next(requests, _Request())

            def messages() -> Iterator[bytes]:
                if first.input:
                    yield first.input
                for request in requests:
                    yield request.input

            with self._called(_last(first.endpoint)) as calls:
                for answer in calls.stream(first.method_name, messages()):
                    yield _Response(output=answer)
        except GoogleError as error:
            _abort(context, error)

    def _other(self, name: str, _request: bytes, context: grpc.ServicerContext) -> None:
        if "Direct" in name or name == "StreamingPredict":
            _abort(context, no_direct_predict(name))
        over_http = "PredictionServiceClient(transport='rest')"
        _abort(context, GoogleError(501, f"the emulator plays {name} over HTTP: {over_http}"))


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _abort(context: grpc.ServicerContext, error: GoogleError) -> None:
    context.abort(_CODES[error.status], error.message)
