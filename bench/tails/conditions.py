"""What happens on a server while it is measured: context managers that take the server and its repository."""

from __future__ import annotations

import http.client
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.models.served import write
from bench.servers.server import Server
from tests.contract.servers.ports import HOST

IDLE = 10_000
LARGE = "large"
COPIES = 10
"""Of a model of 100 MB: 1 GB of models."""
_SIDE = 5000
_CONFIG = 'backend: "onnxruntime"\nmax_batch_size: 8\ninstance_group [ { kind: KIND_CPU count: 1 } ]\n'
_SCRAPE_S = 0.1
_PROBE_S = 0.02
_BROKEN_S = 0.2
_LIMIT_S = 60.0
# Files of this process besides the connections.
_OTHER_FILES = 200
_PROBE = f"GET /v2/health/ready HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()


def build_large(repository: Path) -> None:
    """Write copies of a model whose weights have 100 MB; links, so that the disk has them once."""
    first = repository / f"{LARGE}_0"
    if not (first / "1" / "model.onnx").exists():
        weights = numpy_helper.from_array(np.zeros((_SIDE, _SIDE), np.float32), "W")
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["IN", "W"], ["OUT"])],
            LARGE,
            [helper.make_tensor_value_info("IN", TensorProto.FLOAT, ["N", _SIDE])],
            [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, ["N", _SIDE])],
            [weights],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        write(first, _CONFIG, None)
        onnx.save(model, first / "1" / "model.onnx")
    for index in range(1, COPIES):
        folder = repository / f"{LARGE}_{index}"
        write(folder, _CONFIG, None)
        graph_file = folder / "1" / "model.onnx"
        graph_file.unlink(missing_ok=True)
        graph_file.hardlink_to(first / "1" / "model.onnx")


@contextmanager
def quiet(server: Server, repository: Path) -> Iterator[None]:
    yield


@contextmanager
def scrapes(server: Server, repository: Path) -> Iterator[None]:
    """The page of metrics, every 100 ms."""
    with _repeated(server.spare_port, "GET", "/metrics", _SCRAPE_S):
        yield


@contextmanager
def probes(server: Server, repository: Path) -> Iterator[None]:
    """Live and ready, each every 20 ms on a new connection, as a kubelet does more rarely."""
    with ExitStack() as stack:
        for path in ("/v2/health/live", "/v2/health/ready"):
            stack.enter_context(_repeated(server.port, "GET", path, _PROBE_S))
        yield


@contextmanager
def reloads(server: Server, repository: Path) -> Iterator[None]:
    """A model of 100 MB is loaded anew, again and again."""
    model = repository / f"{LARGE}_0" / "1" / "model.onnx"
    # A model whose files have not changed is not loaded again.
    with _repeated(server.port, "POST", f"/v2/repository/models/{LARGE}_0/load", 0, before=model.touch):
        yield


@contextmanager
def idle_connections(server: Server, repository: Path) -> Iterator[None]:
    """10,000 connections, or as many as this process may open; each has asked once and stays open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        for _ in range(min(IDLE, hard - _OTHER_FILES)):
            connection = stack.enter_context(socket.create_connection((HOST, server.port), timeout=_LIMIT_S))
            connection.sendall(_PROBE)
            if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
                raise RuntimeError("the server is not ready")
        yield


@contextmanager
def broken(server: Server, repository: Path) -> Iterator[None]:
    """A tensor of 16 MB as JSON with an element that is no UTF-8, again and again; each is refused."""
    with _repeated(server.port, "POST", "/v2/models/simple/infer", _BROKEN_S, body=_broken_body(), status=400):
        yield


def _broken_body() -> bytes:
    element, count = b"12345678,", (16 << 20) // 9
    head = b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,%d],"data":[' % count
    return head + count // 2 * element + b'"\xff",' + count // 2 * element + b"1]}]}"


@contextmanager
def _repeated(
    port: int,
    method: str,
    path: str,
    every_s: float,
    *,
    before: Callable[[], None] | None = None,
    body: bytes | None = None,
    status: int = 200,
) -> Iterator[None]:
    """Ask on new connections, from another thread. RuntimeError at the end if an answer had another status."""
    ended = threading.Event()
    answers: list[int] = []

    def ask() -> None:
        while not ended.is_set():
            if before is not None:
                before()
            connection = http.client.HTTPConnection(HOST, port, timeout=_LIMIT_S)
            try:
                connection.request(method, path, body)
                response = connection.getresponse()
                response.read()
                answers.append(response.status)
            except OSError:
                answers.append(0)
            finally:
                connection.close()
            ended.wait(every_s)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if set(answers) != {status}:
        raise RuntimeError(f"{method} {path} was answered with {sorted(set(answers))}")


CONDITIONS: dict[str, Callable[[Server, Path], AbstractContextManager[None]]] = {
    "quiet": quiet,
    "scrapes": scrapes,
    "probes": probes,
    "reloads": reloads,
    "idle": idle_connections,
    "broken": broken,
}
