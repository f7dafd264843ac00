"""gRPC on the containers of SageMaker and Vertex AI: the port is closed unless an option opens it.

Source: docs/sagemaker.md, docs/vertex.md; docs/spec/sagemaker.md section B1.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import tritonclient.grpc as triton

from tests.contract.grpc.grpc_requests import assert_simple, simple_inputs
from tests.contract.sagemaker.sagemaker_container import SageMakerContainer
from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.simple_model import link_models
from tests.contract.vertex.vertex_container import VertexContainer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.shapes("front-ends"),
    pytest.mark.usefixtures("http_workers"),
]


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((HOST, port)) == 0


def assert_infers(port: int) -> None:
    with triton.InferenceServerClient(f"{HOST}:{port}") as client:
        assert client.is_model_ready("simple")
        assert_simple(client.infer("simple", simple_inputs()))


def sagemaker(folder: Path, port: int, **variables: str) -> SageMakerContainer:
    folder.mkdir(exist_ok=True)
    repository = link_models(folder / "model", "simple")
    return SageMakerContainer(
        folder / "log",
        TRIDENT_SAGEMAKER_MODEL_ROOT=str(repository),
        TRIDENT_GRPC_ADDRESS=HOST,
        SAGEMAKER_TRITON_GRPC_PORT=str(port),
        **variables,
    )


def vertex(folder: Path, port: int, *options: str) -> VertexContainer:
    folder.mkdir(exist_ok=True)
    repository = link_models(folder / "models", "simple")
    return VertexContainer(folder, repository, *options, TRIDENT_GRPC_PORT=str(port), TRIDENT_GRPC_ADDRESS=HOST)


def test_an_option_opens_the_port_on_sagemaker(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with sagemaker(tmp_path, port, SAGEMAKER_TRITON_ALLOW_GRPC="true") as container:
        assert_infers(port)
        assert container.ping_status() == 200


def test_an_option_opens_the_port_on_vertex_ai(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with vertex(tmp_path, port, "--allow-grpc=true") as container:
        assert_infers(port)
        assert container.accepts()


@pytest.mark.shapes("one-process")
def test_the_port_is_closed_by_default(tmp_path: Path) -> None:
    (first, second) = free_ports(2)
    with sagemaker(tmp_path / "sagemaker", first), vertex(tmp_path / "vertex", second):
        assert not is_open(first)
        assert not is_open(second)
