"""The memory that a front end shares with the engine: what happens when it is full, and who may hold it.

Source: docs/architecture.md section 5.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt
import pytest

from tests.contract.remote.remote_server import LIMIT_S, Client, RemoteServer, resident_kb
from tests.contract.servers.ports import HOST
from tests.contract.servers.simple_model import IDENTITY, assert_still_serves, link_models
from tests.unit.onnx_models import identity, write_version
from tests.waiting import until

pytestmark = pytest.mark.slow

HEADER_LENGTH = "Inference-Header-Content-Length"
# One half is for requests, the other for responses.
MEMORY = 8 << 20
# Shorter than the timeout of a client.
ROOM_LIMIT_S = 30.0
FITS = 3 << 20
# A request is queued for 4 s, far longer than another request waits for its room.
HELD_CONFIG = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 4000000 preferred_batch_size: 8 }"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteServer]:
    folder = tmp_path_factory.mktemp("shared-memory")
    repository = link_models(folder / "models", "simple", "identity_fp32")
    write_version(identity(), repository, "held", HELD_CONFIG)
    with RemoteServer(repository, folder, f"--http-worker-memory-bytes={MEMORY}", workers=1) as running:
        yield running


def values(size: int, seed: int = 1) -> npt.NDArray[np.float32]:
    return np.arange(seed, seed + size // 4, dtype=np.float32).reshape(1, -1)


def message(array: npt.NDArray[np.float32]) -> tuple[bytes, dict[str, str]]:
    """A binary request for an identity model."""
    shape = list(array.shape)
    entry = {"name": "INPUT0", "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": array.nbytes}}
    text = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    return text + array.tobytes(), {HEADER_LENGTH: str(len(text))}


def post(body: bytes, headers: dict[str, str], path: str = IDENTITY) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\nHost: a\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


def is_echo(client: Client, answer: bytes, array: npt.NDArray[np.float32]) -> bool:
    return answer[int(client.headers[HEADER_LENGTH]) :] == array.tobytes()


def assert_echoed(server: RemoteServer, size: int = FITS, seed: int = 1) -> None:
    """A tensor is echoed as soon as there is room for it."""
    array = values(size, seed)
    body, headers = message(array)
    with Client(server) as client:

        def answered() -> bool:
            status, answer = client.ask("POST", IDENTITY, body, headers)
            assert status in (200, 503), answer[:300]
            assert status == 503 or is_echo(client, answer, array)
            return status == 200

        until(answered, "never room", limit_s=ROOM_LIMIT_S)


def test_announced_bodies_take_no_memory(server: RemoteServer) -> None:
    """One client announces a huge body, many others small ones. None of them sends it."""
    with ExitStack() as stack:
        for size in (100 << 20, *[1_000_000] * 20, *[60_000] * 100):
            client = stack.enter_context(socket.create_connection((HOST, server.http_port), LIMIT_S))
            client.sendall(post(bytes(size), {})[:200])
        assert_echoed(server)
        assert_still_serves(server)
        assert resident_kb(server.front_ends[0], "RssAnon") < 300 << 10


def test_idle_processes_release_unused_memory(server: RemoteServer) -> None:
    assert_echoed(server)
    processes = (server.engine, *server.front_ends)
    until(
        lambda: all(resident_kb(process, "RssShmem") < FITS >> 12 for process in processes),
        "it is kept",
        limit_s=ROOM_LIMIT_S,
    )
    assert_echoed(server)
