"""Requests over gRPC, by the generated stub: one call each, or several on one stream."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.contract.servers.ports import HOST
from tests.histories.board import Outcome
from tests.histories.http_client import LIMIT_S, array_from, from_json, raw
from tests.histories.kinds import Answer, Question

CODES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.ALREADY_EXISTS: 409,
}
_CONTENTS = {"INT32": "int_contents", "FP32": "fp32_contents", "BYTES": "bytes_contents"}


def channel_to(port: int) -> Any:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    options += [("grpc.max_reconnect_backoff_ms", 200), ("grpc.initial_reconnect_backoff_ms", 50)]
    return grpc.insecure_channel(f"{HOST}:{port}", options)


def set_parameter(field: Any, value: Any) -> None:
    if isinstance(value, bool):
        field.bool_param = value
    elif isinstance(value, int):
        field.int64_param = value
    elif isinstance(value, float):
        field.double_param = value
    else:
        field.string_param = value


def can_say(question: Question) -> bool:
    """True if protobuf can express this id and these parameters."""
    try:
        return isinstance(question.id, str) and message_of(question, Random(0)) is not None
    except (ValueError, TypeError):
        return False


def message_of(question: Question, random: Random) -> Any:
    message = pb.ModelInferRequest(model_name=question.kind.name, id=question.id)
    for name, value in question.parameters.items():
        set_parameter(message.parameters[name], value)
    if question.marks is not None:
        for name, value in zip(("sequence_start", "sequence_end"), question.marks, strict=True):
            message.parameters[name].bool_param = value
        set_parameter(message.parameters["sequence_id"], question.sequence)
    is_typed = all(datatype in _CONTENTS for datatype, _ in question.inputs.values()) and random.random() < 0.5
    for name, (datatype, array) in question.inputs.items():
        item = message.inputs.add(name=name, datatype=datatype, shape=array.shape)
        if is_typed:
            getattr(item.contents, _CONTENTS[datatype]).extend(array.reshape(-1).tolist())
        else:
            message.raw_input_contents.append(raw(datatype, array))
    return message


def answer_of(response: Any) -> Answer:
    found = {}
    for at, output in enumerate(response.outputs):
        if response.raw_output_contents:
            found[output.name] = array_from(output.datatype, output.shape, response.raw_output_contents[at])
        else:
            contents = getattr(output.contents, _CONTENTS[output.datatype])
            found[output.name] = from_json(output.datatype, output.shape, list(contents))
    return found


def failed(error: grpc.RpcError) -> Outcome:
    return Outcome(status=CODES.get(error.code(), 500), error=f"{error.code().name} {error.details()}")


class GrpcAsker:
    def __init__(self, port: int) -> None:
        self._channel = channel_to(port)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def ask(self, questions: Sequence[Question], random: Random) -> list[Outcome]:
        one_by_one = questions[0].marks is not None
        messages = [message_of(question, random) for question in questions]
        if one_by_one:
            return [self._ask(message) for message in messages]
        calls = [self._stub.ModelInfer.future(message, timeout=LIMIT_S) for message in messages]
        return [_result(call) for call in calls]

    def _ask(self, message: Any) -> Outcome:
        return _result(self._stub.ModelInfer.future(message, timeout=LIMIT_S))

    def close(self) -> None:
        self._channel.close()


def _result(call: Any) -> Outcome:
    try:
        response = call.result()
    except grpc.RpcError as error:
        return failed(error)
    return Outcome([answer_of(response)], id=response.id)


class StreamAsker:
    """Requests on a stream of ModelStreamInfer, all sent before the first answer is awaited.

    A stream serves several calls of `ask`. Its answers are told apart by their ids, which are unique.
    """

    def __init__(self, port: int) -> None:
        self._channel = channel_to(port)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._call: Any = None
        self._left = 0

    def ask(self, questions: Sequence[Question], random: Random) -> list[Outcome]:
        if self._call is None or not self._call.is_active():
            self._sent = queue.SimpleQueue()
            self._call = self._stub.ModelStreamInfer(iter(self._sent.get, None), timeout=10 * LIMIT_S)
            self._left = random.choice((1, 3, 20))
        found: dict[str, Outcome] = {}
        for question in questions:
            message = message_of(question, random)
            message.parameters["triton_enable_empty_final_response"].bool_param = True
            found[message.id] = Outcome(finals=0)
            self._sent.put(message)
        try:
            self._read(found)
            self._left -= 1
            if self._left <= 0:
                self._end(found)
        except grpc.RpcError as error:
            self._call = None
            return [each if each.finals else failed(error) for each in found.values()]
        return list(found.values())

    def _read(self, found: dict[str, Outcome]) -> None:
        open_requests = set(found)
        while open_requests:
            answer = next(self._call)
            name = answer.infer_response.id
            self._note(answer, found)
            if name not in found or found[name].finals:
                open_requests.discard(name)

    def _note(self, answer: Any, found: dict[str, Outcome]) -> None:
        response = answer.infer_response
        one = found.get(response.id)
        if one is None:
            # An answer to nothing that was asked now: each request had its last one before.
            for each in found.values():
                each.after += 1
                each.error = f"a response with the id {response.id!r}: {answer.error_message}"
            return
        if one.finals:
            one.after += 1
        # A request that was refused has no such parameter.
        is_refused = bool(answer.error_message) and "triton_final_response" not in response.parameters
        one.finals += 1 if is_refused else response.parameters["triton_final_response"].bool_param
        if answer.error_message:
            one.status, one.error = status_of(answer.error_message), answer.error_message
        elif response.outputs:
            one.answers.append(answer_of(response))

    def _end(self, found: dict[str, Outcome]) -> None:
        """Close the sending side: nothing more may come."""
        self._sent.put(None)
        for answer in self._rest():
            self._note(answer, found)
        self._call = None

    def _rest(self) -> Iterator[Any]:
        yield from self._call

    def close(self) -> None:
        if self._call is not None:
            self._call.cancel()
        self._channel.close()


def status_of(text: str) -> int:
    """The status for the text of an error on a stream, which has no code. What it says of a lost process is a 503."""
    refused = ("must specify the START flag", "expected", "unexpected", "unknown model", "not found", "is not ready")
    return 400 if any(each in text for each in refused) else 503
