"""The files of protobuf beside those of NVIDIA's client and of gRPC's packages, and in one process with them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc.model_config_pb2 as config_of_triton
import tritonclient.grpc.service_pb2 as service_of_triton
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2

from tests import needed
from trident.core.protos.pool import pool

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "core" / "protos"
HEALTH = "grpc/health/v1/health.proto"


def declared(file: Any) -> FileDescriptorProto:
    """Declarations of a file, normalized over the differences between compilers."""
    found = FileDescriptorProto.FromString(file.serialized_pb)
    messages = list(found.message_type)
    for message in messages:
        messages.extend(message.nested_type)
        for field in message.field:
            field.ClearField("json_name")
    for service in found.service:
        for method in service.method:
            method.ClearField("options")
    return found


@pytest.mark.parametrize("module", [config_of_triton, service_of_triton])
def test_messages_are_those_of_tritons_client(module: Any) -> None:
    assert declared(pool().FindFileByName(module.DESCRIPTOR.name)) == declared(module.DESCRIPTOR)


def test_health_messages_are_those_of_grpcs_package() -> None:
    ours, theirs = declared(pool().FindFileByName(HEALTH)), declared(health_pb2.DESCRIPTOR)
    assert list(ours.message_type) == theirs.message_type[:2]
    assert list(ours.service[0].method) == theirs.service[0].method[:2]


def test_compiled_files_are_those_of_the_sources(tmp_path: Path) -> None:
    needed.package("grpc_tools", "pip install grpcio-tools")
    protoc = [sys.executable, "-m", "grpc_tools.protoc", "-I."]
    sources = ["model_config.proto", "grpc_service.proto"]
    subprocess.run([*protoc, f"--pyi_out={tmp_path}", *sources], cwd=FOLDER, check=True)
    described = tmp_path / "messages.binpb"
    subprocess.run([*protoc, f"--descriptor_set_out={described}", *sources, HEALTH], cwd=FOLDER, check=True)
    for made in tmp_path.iterdir():
        assert made.read_bytes() == (FOLDER / made.name).read_bytes(), (
            f"{made.name} is older than its source: make protos"
        )


# Each side imports its modules, and returns the class of a request.
BESIDE_TRITON = """
import sys

def ours():
    from trident.core.config.schema import parse_model_config
    from trident.core.protos.grpc_service_pb2 import ModelInferRequest
    assert parse_model_config('input { data_type: TYPE_FP32 }', '').input[0].data_type == 11
    return ModelInferRequest

def theirs():
    import tritonclient.grpc
    return tritonclient.grpc.service_pb2.ModelInferRequest

made = {name: globals()[name]() for name in sys.argv[1:]}
request = made["theirs"](model_name="m", raw_input_contents=[b"1"])
request.parameters["a"].int64_param = 3
read = made["ours"].FromString(request.SerializeToString())
assert read.parameters["a"].int64_param == 3
assert made["theirs"].FromString(read.SerializeToString()) == request
"""


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["upb", "python"])
@pytest.mark.parametrize("order", [("ours", "theirs"), ("theirs", "ours")])
def test_messages_work_beside_those_of_tritons_client(implementation: str, order: tuple[str, str]) -> None:
    environment = os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation}
    subprocess.run([sys.executable, "-c", BESIDE_TRITON, *order], cwd=ROOT, env=environment, check=True)
