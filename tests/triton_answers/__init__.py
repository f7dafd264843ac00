"""Questions that were asked of a real Triton, and its answers.

Each module here but `held`, `servers` and `record` is an area: the models that both servers get (`write_models`), their
options (`OPTIONS`), and functions `ask_…`, which ask a running server and return answers by name. `record` asks Triton
and writes its answers to `recorded/AREA.json`; `tests/contract/test_triton_answers.py` asks Trident. Where Trident
answers otherwise on purpose, the area's `OTHERWISE` has the name of the question, the reason, and Trident's answer.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import pkgutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
from google.protobuf import json_format
from tritonclient.grpc import service_pb2_grpc

from tests.contract.servers.server import ServerProcess
from tests.waiting import until

RECORDED = Path(__file__).parent / "recorded"
NOT_AREAS = ("held", "record", "servers")

Answers = dict[str, Any]
Ask = Callable[[ServerProcess], Answers]


def areas() -> list[ModuleType]:
    names = sorted(found.name for found in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return [importlib.import_module(f"{__name__}.{name}") for name in names if name not in NOT_AREAS]


def area_name(area: ModuleType) -> str:
    return area.__name__.rpartition(".")[2]


def environment(area: ModuleType, repository: Path) -> dict[str, str]:
    """The variables of both servers: this process's, and the area's `ENVIRONMENT`, where {repository} is the folder."""
    own: Mapping[str, str] = getattr(area, "ENVIRONMENT", {})
    return {**os.environ, **{name: value.format(repository=repository) for name, value in own.items()}}


def questions(area: ModuleType) -> dict[str, Ask]:
    return {name.removeprefix("ask_"): ask for name, ask in vars(area).items() if name.startswith("ask_")}


def all_answers(area: ModuleType, server: ServerProcess) -> Answers:
    """The answers of a server to all questions of the area, as JSON reads them; an error of ours names its question."""
    found: Answers = {}
    for name, ask in questions(area).items():
        found |= {f"{name}: {part}": answer for part, answer in ask(server).items()}
    read: Answers = json.loads(json.dumps(found))
    return read


def different(ours: Answers, theirs: Answers, otherwise: Mapping[str, tuple[str, Any]]) -> Answers:
    """Trident's answers by question where they are neither Triton's nor the area's own.

    What Triton calls its own fault, 500, though the request is wrong, is 400 with the same body here.
    """

    def same(question: str) -> bool:
        expected = otherwise[question][1] if question in otherwise else theirs[question]
        answer = ours.get(question)
        if isinstance(expected, dict) and isinstance(answer, dict) and expected.get("status") == 500:
            return answer in (expected, expected | {"status": 400})
        return bool(answer == expected)

    return {question: ours.get(question) for question in theirs if not same(question)}


def http(
    server: ServerProcess,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    *,
    port: int | None = None,
) -> Any:
    """Status, content type and body of an HTTP answer. `body` is bytes, or a document to be sent as JSON.

    What follows a JSON head is in base64. Trident's own hints are left out of errors.
    """
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    status, answered, content = server.request(method, path, data, dict(headers or {}), port=port)
    head = int(answered.get("Inference-Header-Content-Length") or len(content))
    answer: Answers = {"status": status, "type": answered.get("Content-Type")}
    try:
        answer["body"] = json.loads(content[:head])
    except ValueError:
        answer["text"] = content[:head].decode(errors="backslashreplace")
    if isinstance(answer.get("body"), dict) and "error" in answer["body"]:
        answer["body"].pop("hint", None)
    if head < len(content):
        answer["binary"] = base64.b64encode(content[head:]).decode()
    return answer


def wait_for_port(port: int) -> None:
    """Triton opens the ports of platforms after the others."""

    def is_open() -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", port)) == 0

    until(is_open)


def rpc(server: ServerProcess, name: str, message: Any) -> Any:
    """The answer to a unary gRPC call: `{"status", "message"}` of an error, else the message in protobuf's JSON."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        try:
            answer = getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), name)(message, timeout=60)
        except grpc.RpcError as error:
            return {"status": error.code().name, "message": error.details()}  # type: ignore[attr-defined]
    return json_format.MessageToDict(answer, preserving_proto_field_name=True)


def stream(server: ServerProcess, messages: list[Any]) -> list[Any]:
    """The answers of one gRPC stream to the messages, in order; the last is the stream's own error if it has one."""
    answers: list[Any] = []
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        try:
            for answer in service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(
                iter(messages), timeout=60
            ):
                answers.append(json_format.MessageToDict(answer, preserving_proto_field_name=True))
        except grpc.RpcError as error:
            answers.append({"status": error.code().name, "message": error.details()})  # type: ignore[attr-defined]
    return answers
