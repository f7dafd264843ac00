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
from tests.contract.servers.ports import HOST
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


def test_a_client_talks_tls(http_workers: str, shipped_models: Path, authority: Authority, tmp_path: Path) -> None:
    with serving(http_workers, shipped_models, tmp_path, *tls_options(authority)) as server:
        with triton.InferenceServerClient(
            address_of(server), ssl=True, root_certificates=str(authority.root)
        ) as client:
            assert_infers(client)
        with grpc.insecure_channel(address_of(server)) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert rpc_refusal(stub.ServerLive, pb.ServerLiveRequest())[0] == "UNAVAILABLE"


def test_mutual_tls_asks_for_the_clients_certificate(
    http_workers: str, shipped_models: Path, authority: Authority, tmp_path: Path
) -> None:
    mutual = ["--grpc-use-ssl-mutual=true", f"--grpc-root-cert={authority.root}"]
    with serving(http_workers, shipped_models, tmp_path, *tls_options(authority), *mutual) as server:
        certificate, key = authority.sign("client")
        with triton.InferenceServerClient(
            address_of(server),
            ssl=True,
            root_certificates=str(authority.root),
            private_key=str(key),
            certificate_chain=str(certificate),
        ) as client:
            assert_infers(client)
        credentials = grpc.ssl_channel_credentials(authority.root.read_bytes())
        with grpc.secure_channel(address_of(server), credentials) as channel:
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


def test_a_taken_port_ends_the_start(http_workers: str, shipped_models: Path, tmp_path: Path) -> None:
    server = ServerProcess(shipped_models, tmp_path / "log", ready=False)
    with socket.create_server((HOST, server.grpc_port)):
        try:
            server.__enter__()
            assert server.process.wait(30) == 1
        finally:
            server.kill()
    last = server.log_text().splitlines()[-1]
    assert f"error: creating server: Unavailable - Socket '{HOST}:{server.grpc_port}' already in use" in last
