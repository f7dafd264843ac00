"""TLS on the HTTP port, and certificates that change while a server runs.

Source: docs/spec/server-options.md "In Trident".
"""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton

from tests.certificates import Authority
from tests.contract.servers.ports import HOST
from tests.contract.servers.processes import from_each
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.shapes("one-process", "front-ends")]

LARGE = 4 << 20


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


class TlsServer(ServerProcess):
    """A server whose HTTP port has TLS."""

    def __init__(self, context: ssl.SSLContext, *more: Any) -> None:
        super().__init__(*more)
        self.context = context

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPSConnection(HOST, self.http_port, context=self.context, timeout=60)

    def request(self, method: str, path: str, *more: Any, **others: Any) -> Any:
        connection = self.connect()
        try:
            connection.request(method, path, *more)
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()


@contextmanager
def serving(folder: Path, context: ssl.SSLContext, authority: Authority, *options: str) -> Iterator[TlsServer]:
    certificate, key = authority.sign("server")
    files = [f"--http-server-cert={certificate}", f"--http-server-key={key}"]
    files += [f"--grpc-server-cert={certificate}", f"--grpc-server-key={key}"]
    repository = link_models(folder / "models", "simple", "identity_fp32")
    with TlsServer(context, repository, folder / "log", "--shutdown-grace-secs=0", *files, *options) as server:
        yield server


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.root))


def serial_of(server: TlsServer, port: int) -> str:
    """The number of the certificate that a port shows."""
    with (
        socket.create_connection((HOST, port)) as plain,
        server.context.wrap_socket(plain, server_hostname=HOST) as secured,
    ):
        shown: Any = secured.getpeercert()
        return str(shown["serialNumber"])


def assert_echo(client: Any, values: Any) -> None:
    tensor = triton.InferInput("INPUT0", list(values.shape), "FP32")
    tensor.set_data_from_numpy(values)
    answer = client.infer("identity_fp32", [tensor]).as_numpy("OUTPUT0")
    assert np.array_equal(answer, values)


def test_large_bodies_pass_and_changed_certificates_are_served(
    http_workers: str, authority: Authority, tmp_path: Path
) -> None:
    options = ("--http-use-ssl=true", "--grpc-use-ssl=true")
    with serving(tmp_path, trusting(authority), authority, *options) as server:
        ssl_options = {"ca_certs": str(authority.root)}
        client = triton.InferenceServerClient(server.address, ssl=True, ssl_options=ssl_options)
        assert_echo(client, np.arange(16, dtype=np.float32).reshape(1, 16))
        assert_echo(client, np.arange(LARGE // 4, dtype=np.float32).reshape(1, -1))
        kept = server.connect()
        for _ in range(3):
            kept.request("POST", "/v2/repository/index", iter([b"{", b"}"]), encode_chunked=True)
            assert kept.getresponse().read().startswith(b"[")
        plain = http.client.HTTPConnection(HOST, server.http_port, timeout=30)
        plain.request("GET", "/v2")
        refused = plain.getresponse()
        assert (refused.status, b"begin the address with https://" in refused.read()) == (400, True)
        plain.close()

        def serials() -> set[str]:
            """Serial numbers of the certificates on both ports of all front ends."""
            shown = from_each(server, lambda: [serial_of(server, port) for port in ports])
            return {serial for of_one in shown for serial in of_one}

        ports = (server.http_port, server.grpc_port)
        before = serials()
        certificate, _ = authority.sign("server")
        until(lambda: not before & serials(), server.log_text)
        after = serials()
        assert len(after) == 1
        certificate.write_text("half of a certif")
        until(lambda: "it is not in PEM; the certificate from before stays in use" in server.log_text())
        assert serials() == after
        # Connections from before the changes.
        assert_echo(client, np.ones((1, 16), np.float32))
        kept.request("GET", "/v2")
        assert kept.getresponse().status == 200
        kept.close()
        client.close()


def test_mutual_tls_asks_for_the_clients_certificate(http_workers: str, authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.sign("client")
    context = trusting(authority)
    context.load_cert_chain(certificate, key)
    mutual = ("--http-use-ssl-mutual=true", f"--http-root-cert={authority.root}")
    with serving(tmp_path, context, authority, *mutual) as server:
        files = {"ca_certs": str(authority.root), "certfile": str(certificate), "keyfile": str(key)}
        with triton.InferenceServerClient(server.address, ssl=True, ssl_options=files) as client:
            assert_echo(client, np.ones((1, 16), np.float32))
        server.context = trusting(authority)
        # The alert, or what the end of the connection made of it before the client read it.
        with pytest.raises(OSError, match=r"certificate required|Connection reset|EOF occurred|Broken pipe"):
            server.request("GET", "/v2/health/live")
