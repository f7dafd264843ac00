"""Direct calls over gRPC: those to the port of the container, and the platform's own API for them. They need grpcio.

Source: docs/spec/vertex.md section A5.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from trident.core.grpc.status import Status
from trident.tools.emulators.container import HOST, BreachReport, seconds
from trident.tools.emulators.vertex.endpoint import (
    STATUSES,
    Deployment,
    GoogleError,
    VertexLimits,
    invalid,
    no_direct_predict,
    request_too_large,
    response_too_large,
    unhealthy,
)

# directRawPredict: the bytes of one gRPC message, or of a stream of them, are passed on to the first of the model's
# `grpcPorts`, and those of the answers back.

NO_SIZE_LIMIT = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_METHOD = re.compile(r"(/[\w.]+/\w+)/?", re.ASCII)  # the platform's documents end it with a slash
_HEALTH, _SERVING = "/grpc.health.v1.Health/Check", b"\x08\x01"
_HTTP_STATUSES = {code: status for status, code in STATUSES.items()} | {Status.FAILED_PRECONDITION: 400}


class DirectCalls:
    """Passes messages on to the gRPC port of the container while `has_traffic` returns true. Any thread."""

    def __init__(
        self, deployment: Deployment, limits: VertexLimits, report: BreachReport, has_traffic: Callable[[], bool]
    ) -> None:
        self._deployment = deployment
        self._limits = limits
        self._report = report
        self._has_traffic = has_traffic
        # It connects at the first call.
        self._channel = grpc.insecure_channel(f"{HOST}:{deployment.grpc_port}", options=NO_SIZE_LIMIT)

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
            raise unhealthy()
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
            code = Status[error.code().name]
            if code is Status.DEADLINE_EXCEEDED:
                limit = seconds(self._limits.inference_s)
                self._report.add(f"a direct call: the container did not answer within {limit}")
            raise GoogleError(_HTTP_STATUSES.get(code, 500), error.details() or code.name, code) from None


# --- the platform's API

_THREADS = 16
_SERVICE = re.compile(r"/google\.cloud\.aiplatform\.v1(?:beta1)?\.PredictionService/(\w+)")


def _message(name: str, **fields: int) -> Any:
    """A message class with these fields, numbered from 1, by their types."""
    file = FileDescriptorProto(name=f"{name}.proto", syntax="proto3")
    message = file.message_type.add(name=name)
    for number, (member, kind) in enumerate(fields.items(), 1):
        message.field.add(name=member, number=number, type=kind, label=FieldDescriptorProto.LABEL_OPTIONAL)
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
        self._server = grpc.server(ThreadPoolExecutor(_THREADS, "gRPC API"), handlers=[self], options=NO_SIZE_LIMIT)
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
            with self._called(request.endpoint.rpartition("/")[2]) as calls:
                return _Response(output=calls.predict(request.method_name, request.input))
        except GoogleError as error:
            context.abort(grpc.StatusCode[error.status.name], error.message)

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

            with self._called(first.endpoint.rpartition("/")[2]) as calls:
                for answer in calls.stream(first.method_name, messages()):
                    yield _Response(output=answer)
        except GoogleError as error:
            context.abort(grpc.StatusCode[error.status.name], error.message)

    def _other(self, name: str, _request: bytes, context: grpc.ServicerContext) -> None:
        error = GoogleError(501, f"the emulator plays {name} over HTTP: PredictionServiceClient(transport='rest')")
        if "Direct" in name or name == "StreamingPredict":
            error = no_direct_predict(name)
        context.abort(grpc.StatusCode[error.status.name], error.message)
