"""The gRPC port: TLS, mutual TLS, IPv6, Unix sockets, and ports that cannot be opened."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.certificates import Authority
from tests.contract.grpc.grpc_requests import address_of, assert_simple, rpc_refusal, simple_inputs
from tests.contract.servers.server import ServerProcess
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@contextmanager
def serving(http_workers: str, models: Path, folder: Path, *options: str) -> Iterator[ServerProcess]:
    with ServerProcess(models, folder / "log", "--shutdown-grace-secs=0", *options) as server:
        yield server


def tls_options(authority: Authority, name: str = "server") -> list[str]:
    certificate, key = authority.sign(name)
    return ["--grpc-use-ssl=true", f"--grpc-server-cert={certificate}", f"--grpc-server-key={key}"]


def assert_infers(client: Any) -> None:
    assert client.is_server_ready()
    assert_simple(client.infer("simple", simple_inputs()))


@pytest.mark.parametrize("mutual", [False, True], ids=["TLS", "mutual TLS"])
def test_a_client_talks_tls(
    http_workers: str, shipped_models: Path, authority: Authority, tmp_path: Path, mutual: bool
) -> None:
    options = tls_options(authority)
    own: dict[str, str] = {}
    if mutual:
        options += ["--grpc-use-ssl-mutual=true", f"--grpc-root-cert={authority.root}"]
        certificate, key = authority.sign("client")
        own = {"private_key": str(key), "certificate_chain": str(certificate)}
    with serving(http_workers, shipped_models, tmp_path, *options) as server:
        address = address_of(server)
        with triton.InferenceServerClient(address, ssl=True, root_certificates=str(authority.root), **own) as client:
            assert_infers(client)
        # Without TLS, or without a certificate of its own.
        credentials = grpc.ssl_channel_credentials(authority.root.read_bytes())
        with grpc.secure_channel(address, credentials) if mutual else grpc.insecure_channel(address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert rpc_refusal(stub.ServerLive, pb.ServerLiveRequest())[0] == "UNAVAILABLE"


def test_the_address_may_be_of_ipv6(http_workers: str, shipped_models: Path, tmp_path: Path) -> None:
    with serving(http_workers, shipped_models, tmp_path, "--grpc-address=[::1]") as server:
        with triton.InferenceServerClient(f"[::1]:{server.grpc_port}") as client:
            assert_infers(client)
        started = f"Started GRPCInferenceService at [::1]:{server.grpc_port}"
        until(lambda: started in server.log_text(), server.log_text)


def test_the_address_may_be_a_unix_socket(http_workers: str, shipped_models: Path, tmp_path: Path) -> None:
    path = tmp_path / "grpc"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    with serving(http_workers, shipped_models, tmp_path, f"--grpc-address=unix:{path}") as server:
        with triton.InferenceServerClient(f"unix:{path}") as client:
            assert_infers(client)
        started = f"Started GRPCInferenceService at unix:{path}"
        until(lambda: started in server.log_text(), server.log_text)
    assert not path.exists()
