"""The generated messages: loaded without gRPC, and the same classes in either order of import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.project import ROOT
from trident.core.config.schema import DataType, datatype_of


def run_python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=ROOT)


def test_schema_does_not_import_grpc() -> None:
    run_python("import sys, trident.core.config.schema; assert 'grpc' not in sys.modules, 'gRPC was imported'")


@pytest.mark.parametrize(
    "first",
    ["import trident.core.config.schema, tritonclient.grpc", "import tritonclient.grpc, trident.core.config.schema"],
)
def test_client_and_server_share_the_message_classes(first: str) -> None:
    run_python(
        f"{first}\n"
        "import tritonclient.grpc.model_config_pb2 as client\n"
        "from tritonclient.grpc import service_pb2\n"
        "from trident.core.config.schema import ModelConfig, ModelInstanceGroup\n"
        "assert client.ModelConfig is ModelConfig\n"
        "assert client.ModelInstanceGroup is ModelInstanceGroup\n"
        "config = ModelConfig(name='simple')\n"
        "assert service_pb2.ModelConfigResponse(config=config).config.name == 'simple'\n"
    )


def test_datatype_of_knows_only_the_table() -> None:
    row = datatype_of(DataType.TYPE_STRING)
    assert row is not None
    assert row.name == "BYTES"
    assert datatype_of(DataType.TYPE_INVALID) is None
    assert datatype_of(77) is None
