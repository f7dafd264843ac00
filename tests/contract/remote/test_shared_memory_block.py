"""The memory that a front end shares with the engine: when it is full, and when clients hold it.

Source: docs/architecture.md section 5.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from tests.contract.remote.remote_server import LIMIT_S, Client, RemoteServer, resident_kb
from tests.contract.servers.ports import HOST
from tests.contract.servers.simple_model import IDENTITY, assert_still_serves, link_models
from tests.waiting import until

pytestmark = pytest.mark.slow

HEADER_LENGTH = "Inference-Header-Content-Length"
# One half is for requests, the other for responses.
MEMORY = 8 << 20
FITS = 3 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteServer]:
    folder = tmp_path_factory.mktemp("shared-memory")
    repository = link_models(folder / "models", "simple", "identity_fp32")
    with RemoteServer(repository, folder, f"--http-worker-memory-bytes={MEMORY}", workers=1) as running:
        yield running


def assert_echoed(server: RemoteServer) -> None:
    """A tensor is echoed as soon as there is space for it."""
    array = np.arange(FITS // 4, dtype=np.float32).reshape(1, -1)
    parameters = {"binary_data_size": array.nbytes}
    entry = {"name": "INPUT0", "datatype": "FP32", "shape": list(array.shape), "parameters": parameters}
    text = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    with Client(server) as client:

        def answered() -> bool:
            body, headers = text + array.tobytes(), {HEADER_LENGTH: str(len(text))}
            status, answer = client.ask("POST", IDENTITY, body, headers)
            assert status in (200, 503), answer[:300]
            assert status == 503 or answer[int(client.headers[HEADER_LENGTH]) :] == array.tobytes()
            return status == 200

        until(answered, "never space")


def test_announced_bodies_take_no_memory(server: RemoteServer) -> None:
    """One client announces a huge body, many others small ones. None of them sends it."""
    with ExitStack() as stack:
        for size in (100 << 20, *[1_000_000] * 20, *[60_000] * 100):
            client = stack.enter_context(socket.create_connection((HOST, server.http_port), LIMIT_S))
            client.sendall(f"POST {IDENTITY} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\nbegin".encode())
        assert_echoed(server)
        assert_still_serves(server)
        assert resident_kb(server.front_ends[0], "RssAnon") < 300 << 10


def test_idle_processes_release_unused_memory(server: RemoteServer) -> None:
    assert_echoed(server)
    processes = (server.engine, *server.front_ends)
    until(
        lambda: all(resident_kb(process, "RssShmem") < FITS >> 12 for process in processes),
        "it is kept",
    )
    assert_echoed(server)
