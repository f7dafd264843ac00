"""RPCs that need a key: without it, with a wrong one, with that of another group, and with theirs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.project import ROOT
from tests.triton_answers import Answers

OPTIONS = (
    "--grpc-restricted-protocol=health,metadata:first=1",
    "--grpc-restricted-protocol=inference:second=two words",
    "--grpc-restricted-protocol=shared-memory,model-config,model-repository,statistics,trace,logging:third=3",
)
OTHERWISE: dict[str, tuple[str, Any]] = {
    f"keys: {kind}SharedMemoryRegister, third": (
        "a region needs a name",
        ["INVALID_ARGUMENT", f"'region name' is necessary to register {kind.lower()} shared memory region"],
    )
    for kind in ("System", "Cuda")
}
KEYS: dict[str, list[tuple[str, str]]] = {
    "none": [],
    "first": [("triton-grpc-protocol-first", "1")],
    "second": [("triton-grpc-protocol-second", "two words")],
    "third": [("triton-grpc-protocol-third", "3")],
    "wrong": [(f"triton-grpc-protocol-{name}", "0") for name in ("first", "second", "third")],
    "bare": [("first", "1"), ("second", "two words"), ("third", "3")],
    "wrong first": [("triton-grpc-protocol-first", "0"), ("triton-grpc-protocol-first", "1")],
}
CALLS = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig", "ModelStatistics")
CALLS += ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting", "LogSettings")
CALLS += tuple(
    f"{kind}SharedMemory{verb}" for kind in ("System", "Cuda") for verb in ("Status", "Register", "Unregister")
)


def write_models(folder: Path) -> None:
    shutil.copytree(ROOT / "tests" / "golden" / "models" / "simple", folder / "simple")


def shown(call: Any, message: Any, metadata: list[tuple[str, str]]) -> Any:
    """The error of a call; whether there is none."""
    try:
        call(message, timeout=60, metadata=metadata)
    except grpc.RpcError as error:
        return [error.code().name, error.details()]  # type: ignore[attr-defined]
    return "OK"


def ask_keys(server: ServerProcess) -> Answers:
    answers: Answers = {}
    with grpc.insecure_channel(f"{HOST}:{server.grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        check = channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=bytes)
        for key, metadata in KEYS.items():
            for name in CALLS:
                answers[f"{name}, {key}"] = shown(getattr(stub, name), getattr(pb, f"{name}Request")(), metadata)
            answers[f"Check, {key}"] = shown(check, b"", metadata)
            answers[f"ModelInfer, {key}"] = shown(stub.ModelInfer, pb.ModelInferRequest(model_name="x"), metadata)
            found: list[Any] = []
            try:
                for answer in stub.ModelStreamInfer(
                    iter([pb.ModelInferRequest(id="r")]), timeout=60, metadata=metadata
                ):
                    found.append(json_format.MessageToDict(answer, preserving_proto_field_name=True))
            except grpc.RpcError as error:
                found.append([error.code().name, error.details()])  # type: ignore[attr-defined]
            answers[f"ModelStreamInfer, {key}"] = found
    return answers
