"""ModelStreamInfer: errors, final responses, order, ends, cancellation; models that answer once, often and never."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.contract.python.python_models import write_model
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.project import ROOT
from tests.triton_answers import Answers, rpc
from tests.waiting import until

OPTIONS = ("--grpc-header-forward-pattern=x-.*",)
CODES = ("UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED")
LATER_FLAG = "the client is told of the final flag that comes later, and of the error before it"
NAMES = {"id": "r", "model_name": "once"}
IS_FINAL = {"parameters": {"triton_final_response": {"bool_param": True}}}
SAID = {
    **NAMES,
    "model_version": "1",
    "outputs": [{"name": "said", "datatype": "BYTES", "shape": ["1"]}],
    "raw_output_contents": ["AQAAAGE="],
}
OTHERWISE: dict[str, tuple[str, Any]] = {
    "scripts: once: a": (LATER_FLAG, [{"infer_response": SAID | IS_FINAL}, {"status": "OK"}]),
    "scripts: once: INVALID_ARG": (
        LATER_FLAG,
        [{"error_message": "it said INVALID_ARG", "infer_response": NAMES | IS_FINAL}, {"status": "OK"}],
    ),
    "scripts: once: INVALID_ARG, unary": (
        LATER_FLAG,
        {"status": "INVALID_ARGUMENT", "message": "it said INVALID_ARG"},
    ),
}
EMPTY_FINAL = {"triton_enable_empty_final_response": pb.InferParameter(bool_param=True)}
FLAG = "triton_final_response"

# Follows the words of a script; `last:` before a word sends the final flag with it, `stop` sends none.
SCRIPT = """
cancelled = 0

def execute(self, requests):
    for request in requests:
        words = [word.decode() for word in pb_utils.get_input_tensor_by_name(request, "script").as_numpy().flat]
        if "raise" in words:
            raise ValueError("raised")
        sender = request.get_response_sender()
        if "wait" in words:
            threading.Thread(target=self.wait, args=(sender,)).start()
        else:
            self.follow(sender, words, request)

def wait(self, sender):
    sender.send(pb_utils.InferenceResponse([self.said("waiting")]))
    while not sender.is_cancelled():
        time.sleep(0.002)
    TritonPythonModel.cancelled += 1
    sender.send(flags=1)

def follow(self, sender, words, request):
    for word in words:
        flags = 1 if word.startswith("last:") else 0
        word = word.removeprefix("last:")
        if word == "stop":
            return
        if word == "flag":
            sender.send(flags=1)
            return
        try:
            sender.send(self.response(word, request), flags)
        except Exception as error:
            self.noted = f"{type(error).__name__}: {error}"
        if flags:
            return
    sender.send(flags=1)

def response(self, word, request):
    import json
    if hasattr(pb_utils.TritonError, word):
        error = pb_utils.TritonError("it said " + word, getattr(pb_utils.TritonError, word))
        return pb_utils.InferenceResponse(error=error)
    if word == "empty":
        return pb_utils.InferenceResponse([])
    if word == "both":
        return pb_utils.InferenceResponse([self.said("a"), pb_utils.Tensor("more", np.arange(2, dtype=np.int32))])
    if word == "large":
        return pb_utils.InferenceResponse([self.said("x" * 5_000_000)])
    known = {
        "cancelled": TritonPythonModel.cancelled,
        "noted": getattr(self, "noted", ""),
        "request": [request.request_id(), request.flags(), json.loads(request.parameters() or "{}")],
        "outputs": sorted(request.requested_output_names()),
    }
    return pb_utils.InferenceResponse([self.said(str(known.get(word, word)))])

def said(self, text):
    return pb_utils.Tensor("said", np.array([text.encode()], dtype=object))
"""
TENSORS = """
input [ { name: "script" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "said" data_type: TYPE_STRING dims: [ 1 ] }, { name: "more" data_type: TYPE_INT32 dims: [ 2 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
# Says how many requests of its sequence there were.
COUNTER = """
counts = {}

def execute(self, requests):
    responses = []
    for request in requests:
        start, end, number = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy().flat[0] for name in ("START", "END", "ID")
        )
        key = str(number)
        count = self.counts[key] = 1 if start else self.counts.get(key, 0) + 1
        words = pb_utils.get_input_tensor_by_name(request, "script").as_numpy().flat
        text = f"{[word.decode() for word in words]} is {count} of {key}{', the last' if end else ''}"
        response = pb_utils.InferenceResponse([pb_utils.Tensor("said", np.array([[text.encode()]], dtype=object))])
        if self.decoupled:
            sender = request.get_response_sender()
            for _ in range(count):
                sender.send(response)
            sender.send(flags=1)
        else:
            responses.append(response)
    return None if self.decoupled else responses

def initialize(self, args):
    self.decoupled = "many" in args["model_name"]
"""
SEQUENCES = """
sequence_batching {
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } ] },
    { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
}
input [ { name: "script" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "said" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"


def write_models(folder: Path) -> None:
    shutil.copytree(ROOT / "tests" / "golden" / "models" / "simple", folder / "simple")
    write_model(folder, "many", SCRIPT, TENSORS + DECOUPLED, max_batch_size=0)
    write_model(folder, "once", SCRIPT, TENSORS, max_batch_size=0)
    write_model(folder, "count", COUNTER, SEQUENCES)
    write_model(folder, "count_many", COUNTER, SEQUENCES + DECOUPLED)


def script(model: str, *words: str, name: str = "r", **fields: Any) -> Any:
    """A request for a model above, with the id `name`."""
    raw = b"".join(len(word.encode()).to_bytes(4, "little") + word.encode() for word in words)
    fields = {"raw_input_contents": [raw]} | fields
    shape = [1, 1] if model.startswith("count") else [len(words)]
    tensor = pb.ModelInferRequest.InferInputTensor(name="script", datatype="BYTES", shape=shape)
    return pb.ModelInferRequest(model_name=model, id=name, inputs=[tensor], **fields)


def sequence(model: str, word: str, number: int, *, start: bool = False, end: bool = False, name: str = "r") -> Any:
    parameters = {
        "sequence_id": pb.InferParameter(int64_param=number),
        "sequence_start": pb.InferParameter(bool_param=start),
        "sequence_end": pb.InferParameter(bool_param=end),
    }
    return script(model, word, name=name, parameters=parameters)


def simple(name: str = "s", **fields: Any) -> Any:
    row = np.arange(16, dtype=np.int32).tobytes()
    inputs = [
        pb.ModelInferRequest.InferInputTensor(name=n, datatype="INT32", shape=[1, 16]) for n in ("INPUT0", "INPUT1")
    ]
    outputs = [pb.ModelInferRequest.InferRequestedOutputTensor(name="OUTPUT1")]
    fields = {"model_name": "simple", "raw_input_contents": [row, row]} | fields
    return pb.ModelInferRequest(id=name, inputs=inputs, outputs=outputs, **fields)


class Conversation:
    """A stream whose requests are sent one by one."""

    def __init__(self, server: ServerProcess, metadata: Iterable[tuple[str, str]] = (), **options: Any) -> None:
        limits = [("grpc.max_receive_message_length", -1)]
        self._channel = grpc.insecure_channel(f"{HOST}:{server.grpc_port}", limits, **options)
        self._requests: SimpleQueue[Any] = SimpleQueue()
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self.call = stub.ModelStreamInfer(iter(self._requests.get, None), timeout=60, metadata=tuple(metadata))

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *error: object) -> None:
        self._channel.close()

    def send(self, *messages: Any) -> None:
        for message in messages:
            self._requests.put(message)

    def answer(self) -> Any:
        """The next answer; the status of the stream after the last one."""
        try:
            answer = next(self.call)
        except StopIteration:
            return {"status": self.call.code().name}
        except grpc.RpcError as error:
            return {"status": error.code().name, "message": error.details()}  # type: ignore[attr-defined]
        return json_format.MessageToDict(answer, preserving_proto_field_name=True)

    def end(self) -> list[Any]:
        """End the requests; returns the answers that are left, and the status."""
        self._requests.put(None)
        answers = [self.answer()]
        while "status" not in answers[-1]:
            answers.append(self.answer())
        return answers


def ask(server: ServerProcess, *messages: Any, **metadata: str) -> list[Any]:
    with Conversation(server, metadata.items()) as conversation:
        conversation.send(*messages)
        return list(without_place(server, conversation.end()))


def unary(server: ServerProcess, message: Any) -> Any:
    return without_place(server, rpc(server, "ModelInfer", message))


def without_place(server: ServerProcess, answers: Any) -> Any:
    """The answers without the path of the repository, which a traceback has."""
    return json.loads(json.dumps(answers).replace(server.location, "REPOSITORY"))


def by_request(answers: list[Any]) -> dict[str, list[Any]]:
    """The answers by the ids of their requests: those of several requests come in any order."""
    found: dict[str, list[Any]] = {}
    for answer in answers:
        found.setdefault(answer.get("infer_response", {}).get("id", ""), []).append(answer)
    return found


SCRIPTS: tuple[tuple[str, ...], ...] = (
    ("a",),
    ("last:a",),
    ("flag",),
    ("a", "b"),
    ("a", "b", "last:c"),
    ("a", "flag"),
    ("a", "flag", "b"),
    ("empty",),
    ("last:empty",),
    ("a", "empty", "b"),
    ("both",),
    ("a", "INTERNAL", "b"),
    ("INVALID_ARG",),
    ("last:INVALID_ARG",),
    ("NOT_FOUND", "UNSUPPORTED"),
    ("raise",),
    ("outputs",),
    ("request",),
)
# The last two have their final flag apart from the response.
ONCE = ("last:a", "last:empty", "last:both", "raise", "last:outputs", "last:request", "a", "INVALID_ARG")


def ask_scripts(server: ServerProcess) -> Answers:
    answers: Answers = {}
    for words in SCRIPTS:
        text = " ".join(words)
        answers[f"many: {text}"] = ask(server, script("many", *words))
        answers[f"many: {text}, empty final"] = ask(server, script("many", *words, parameters=EMPTY_FINAL))
    for word in ONCE:
        answers[f"once: {word}"] = ask(server, script("once", word))
        answers[f"once: {word}, unary"] = unary(server, script("once", word))
    return answers


def ask_codes(server: ServerProcess) -> Answers:
    answers: Answers = {}
    for code in CODES:
        answers[code] = ask(server, script("many", code))
        last = f"last:{code}"
        answers[f"{code}, once"] = ask(server, script("once", last))
        answers[f"{code}, unary"] = unary(server, script("once", last))
    return answers


def ask_forms(server: ServerProcess) -> Answers:
    """Ids, versions, names and outputs of requests to a model that answers often."""
    said = pb.ModelInferRequest.InferRequestedOutputTensor(name="said")
    classified = pb.ModelInferRequest.InferRequestedOutputTensor(
        name="more", parameters={"classification": pb.InferParameter(int64_param=1)}
    )
    return {
        "no id": ask(server, script("many", "a", "NOT_FOUND", name="")),
        "a version": ask(server, script("many", "a", "NOT_FOUND", model_version="1", parameters=EMPTY_FINAL)),
        "no such version": ask(server, script("many", "a", model_version="2")),
        "not a version": ask(server, script("many", "a", model_version="x")),
        "no such model": ask(server, script("other", "a")),
        "no model": ask(server, script("", "a")),
        "one output": ask(server, script("many", "both", outputs=[said])),
        "classified": ask(server, script("many", "both", "a", outputs=[classified, said])),
        "unknown output": ask(
            server, script("many", "a", outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name="x")])
        ),
        "no inputs": ask(server, pb.ModelInferRequest(model_name="many", id="r")),
        "no inputs, once": ask(server, pb.ModelInferRequest(model_name="once", id="r")),
        "nothing": ask(server, pb.ModelInferRequest()),
        "parameters": ask(
            server,
            script("many", "request", parameters=EMPTY_FINAL | {"own": pb.InferParameter(double_param=0.5)}),
        ),
        "wrong parameter": ask(server, script("many", "a", parameters={"timeout": pb.InferParameter(bool_param=True)})),
        "empty final, once": ask(server, script("once", "last:a", parameters=EMPTY_FINAL)),
        "empty final, wrong": ask(
            server, script("many", "a", parameters={"triton_enable_empty_final_response": pb.InferParameter()})
        ),
        "unary": unary(server, script("many", "a")),
        "unary, no inputs": unary(server, pb.ModelInferRequest(model_name="many")),
        "unary, version": unary(server, script("many", "a", model_version="2")),
    }


def ask_several(server: ServerProcess) -> Answers:
    """Requests of several models on one stream."""
    bad = simple("bad", raw_input_contents=[])
    # Triton does not send the responses of `many` if there are requests for other models in the stream as well.
    many = [
        script("many", "a", "b", "NOT_FOUND", name="1"),
        script("many", "a", name="2", raw_input_contents=[]),
        script("many", "flag", name="3"),
        script("many", "x", name="4", parameters=EMPTY_FINAL),
        script("many", "last:c", name="5"),
    ]
    once = [
        simple("1"),
        script("once", "last:c", name="2"),
        bad,
        script("absent", "d", name="3"),
        script("once", "last:UNSUPPORTED", name="4"),
        simple("5"),
    ]
    in_order = [
        simple(str(number)) if number % 3 else script("once", "last:a", name=str(number)) for number in range(30)
    ]
    return {
        "nothing": ask(server),
        "many": by_request(ask(server, *many)),
        "once": ask(server, *once),
        "order": [answer.get("infer_response", {}).get("id") for answer in ask(server, *in_order)],
        "one request's order": ask(server, script("many", *map(str, range(12)))),
        "refused among others": [answer.get("error_message", "") for answer in ask(server, simple(), bad, simple())],
        "the same id twice": ask(server, simple("1"), simple("1")),
    }


def ask_conversations(server: ServerProcess) -> Answers:
    """Streams that stay open, end, or are cancelled."""
    answers: Answers = {}
    with Conversation(server) as open_stream:
        open_stream.send(simple("1"))
        found = [open_stream.answer()]
        open_stream.send(script("many", "a", "NOT_FOUND", name="2"))
        found += [open_stream.answer(), open_stream.answer()]
        open_stream.send(simple("3"))
        answers["goes on after errors"] = found + open_stream.end()

    def cancelled() -> int:
        (answer, _) = ask(server, script("many", "last:cancelled"))
        return int(text_of(answer))

    before = cancelled()
    with Conversation(server) as stream:
        stream.send(script("many", "wait"), script("many", "wait"))
        answers["before a cancellation"] = [stream.answer(), stream.answer()]
        stream.call.cancel()
        until(lambda: cancelled() == before + 2)
    return answers


def text_of(answer: Any) -> str:
    """The text that a response says."""
    return base64.b64decode(answer["infer_response"]["raw_output_contents"][0])[4:].decode()


def ask_sequences(server: ServerProcess) -> Answers:
    answers: Answers = {}
    for model in ("count", "count_many"):
        whole = [
            sequence(model, "a", 1, start=True, name="1"),
            sequence(model, "b", 1, name="2"),
            sequence(model, "c", 1, end=True, name="3"),
        ]
        two = [
            sequence(model, "a", 1, start=True, name="1"),
            sequence(model, "b", 2, start=True, name="2"),
            sequence(model, "c", 1, name="3"),
            sequence(model, "d", 2, end=True, name="4"),
            sequence(model, "e", 1, end=True, name="5"),
        ]
        strange = [
            sequence(model, "a", 1, name="1"),
            sequence(model, "b", 0, start=True, name="2"),
            sequence(model, "c", 1, start=True, name="3"),
            sequence(model, "d", 1, start=True, name="4"),
            sequence(model, "e", 1, end=True, name="5"),
            sequence(model, "f", 1, name="6"),
            sequence(model, "g", 7, start=True, end=True, name="7"),
        ]
        for name, requests in (("whole", whole), ("two", two), ("strange", strange)):
            found = ask(server, *requests)
            answers[f"{model}: {name}"] = found if model == "count" else by_request(found)
    return answers


def ask_metadata(server: ServerProcess) -> Answers:
    """Metadata that becomes parameters, or does not."""

    def echo(*metadata: tuple[str, str | bytes], **options: Any) -> Any:
        with Conversation(server, metadata, **options) as conversation:  # type: ignore[arg-type]
            conversation.send(script("many", "last:request"))
            return conversation.end()

    return {
        "forwarded": echo(("x-own", "a"), ("own", "b")),
        "part of the name": echo(("my-x-own", "a"), ("x", "b")),
        "twice": echo(("x-own", "a"), ("x-own", "b")),
        "binary": echo(("x-own-bin", b"\1\2")),
        "empty": echo(("x-own", "")),
        "reserved": echo(("x-own", "a"), ("triton_x", "b")),
        "and parameters": ask(
            server,
            script("many", "last:request", parameters={"x-own": pb.InferParameter(string_param="mine")}),
            **{"x-own": "theirs"},
        ),
    }


def ask_compression(server: ServerProcess) -> Answers:
    """Requests in compressed messages, and large answers."""
    answers: Answers = {}
    for name in ("Gzip", "Deflate"):
        with Conversation(server, compression=grpc.Compression[name]) as conversation:
            conversation.send(simple(), script("once", "last:" + "x" * 100))
            answers[name] = conversation.end()
    with Conversation(server) as conversation:
        conversation.send(script("once", "last:large"), script("once", f"last:{'x' * 5_000_000}"))
        answers["large"] = [len(str(answer)) for answer in conversation.end()]
    with Conversation(server) as conversation:
        conversation.send(script("many", "last:large"))
        answers["large, many"] = [len(str(answer)) for answer in conversation.end()]
    return answers


def ask_triton_grpc_error(server: ServerProcess) -> Answers:
    """Streams that end with their first error. Triton may crash a moment later, so this is the last question, and no
    responses follow an error."""

    def ended(*messages: Any) -> list[Any]:
        return ask(server, *messages, triton_grpc_error="true")

    bad = simple("bad", raw_input_contents=[])
    answers: Answers = {
        "refused first": ended(bad, simple()),
        "an answer": ended(simple()),
        "answers": ended(script("many", "a", "b")),
        "an empty answer": ended(script("many", "last:empty")),
        "empty final": ended(script("many", "a", parameters=EMPTY_FINAL)),
    }
    for code in CODES:
        answers[code] = ended(script("many", f"last:{code}"))
    for value in ("True", "1", "false"):
        answers[f"'{value}'"] = ask(server, script("many", "last:NOT_FOUND"), triton_grpc_error=value)
    with Conversation(server, [("triton_grpc_error", "true")]) as conversation:
        conversation.send(simple("1"))
        found = [conversation.answer()]
        conversation.send(script("once", "last:NOT_FOUND", name="2"))
        answers["an answer before"] = [*found, conversation.answer()]
    answers["raised"] = ended(script("many", "raise"))
    return answers
