"""The slowest requests: what scrapes, probes, reloads, idle connections and the garbage collector add to them.

    python -m bench tails                                    about 3 minutes
    python -m bench tails --only quiet,scrapes --rounds 10
    python -m bench tails --checkouts ../before,.            two checkouts in turn
    python -m bench tails --only quiet --cases a-json,a-binary,cnn-json,cnn-binary --connections 1,16,64

Add/sub of 16 integers as JSON, or other cases, in one process that has 1 GB of models besides. `cnn` is a classifier of
digits of 28x28 with at most 32 in a batch and a queue delay of 500 µs. The conditions take turns; a figure is the
median of the rounds, and the pause is the longest garbage collection of all rounds.
"""

from __future__ import annotations

import argparse
import http.client
import resource
import shutil
import socket
import statistics
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import product
from pathlib import Path

import numpy as np
from onnx import helper

from bench.cases import BY_KEY, DIGIT, Case
from bench.clients import BUILD, ClientResult, run_client, write_requests
from bench.machine import LoadWatch
from bench.models import repositories
from bench.models.networks import graph_of
from bench.results import names_among, positive, table
from bench.servers.server import Server
from bench.servers.watched import pauses_us
from tests.contract.servers.ports import HOST
from tests.project import ROOT
from trident.app.bench.measure import number

FOLDER = BUILD / "tails"
DELAYED = "digits_cnn"
CASES = {key: BY_KEY[key] for key in ("a-json", "a-binary")} | {
    f"cnn-{name}": Case(
        f"cnn-{name}",
        "28x28 digit classifier, 500 µs",
        DELAYED,
        (("INPUT", "FP32", DIGIT),),
        ("OUTPUT",),
        binary=name == "binary",
    )
    for name in ("json", "binary")
}
IDLE = 10_000
LARGE, COPIES, SIDE = "large", 10, 5000
"""Copies of a model of 100 MB: 1 GB of models."""
LIMIT_S = 60.0
# Files of this process besides the connections.
OTHER_FILES = 200
PROBE = f"GET /v2/health/ready HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()


def build(repository: Path) -> None:
    """The weights of the large models are links, so that the disk has them once."""
    repositories.build(repository)
    shutil.copytree(ROOT / "tests" / "golden" / "models" / DELAYED, repository / DELAYED, dirs_exist_ok=True)
    config = 'backend: "onnxruntime"\nmax_batch_size: 8\ninstance_group [ { kind: KIND_CPU count: 1 } ]\n'
    first = repository / f"{LARGE}_0" / "1" / "model.onnx"
    if not first.exists():
        node = helper.make_node("MatMul", ["INPUT", "W"], ["OUTPUT"])
        graph = graph_of([node], [SIDE], [SIDE], {"W": np.zeros((SIDE, SIDE), np.float32)})
        repositories.write(first.parents[1], config, graph)
    for index in range(1, COPIES):
        repositories.write(repository / f"{LARGE}_{index}", config, None)
        copy = repository / f"{LARGE}_{index}" / "1" / "model.onnx"
        copy.unlink(missing_ok=True)
        copy.hardlink_to(first)


Condition = Callable[[Server], AbstractContextManager[None]]


@contextmanager
def quiet(server: Server) -> Iterator[None]:
    yield


@contextmanager
def idle_connections(server: Server) -> Iterator[None]:
    """10,000 connections, or as many as this process may open; each has asked once and stays open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        for _ in range(min(IDLE, hard - OTHER_FILES)):
            connection = stack.enter_context(socket.create_connection((HOST, server.ports["http"]), timeout=LIMIT_S))
            connection.sendall(PROBE)
            if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
                raise RuntimeError("the server is not ready")
        yield


def reloads(model: str, every_s: float) -> Condition:
    """Load a model again and again. It is touched, because one whose files have not changed is not loaded again."""

    def touch(server: Server) -> None:
        (server.repository / model / "1" / "model.onnx").touch()

    return repeated("POST", f"/v2/repository/models/{model}/load", every_s=every_s, before=touch)


def broken_tensor() -> bytes:
    """A tensor of 16 MB as JSON with an element that is not UTF-8."""
    element, count = b"12345678,", (16 << 20) // 9
    head = b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,%d],"data":[' % count
    return head + count // 2 * element + b'"\xff",' + count // 2 * element + b"1]}]}"


def repeated(
    method: str,
    *paths: str,
    every_s: float,
    port: str = "http",
    before: Callable[[Server], None] = lambda server: None,
    body: Callable[[], bytes | None] = lambda: None,
    status: int = 200,
) -> Condition:
    """Ask on new connections, each path from a thread. RuntimeError at the end if an answer had another status."""

    @contextmanager
    def condition(server: Server) -> Iterator[None]:
        ended = threading.Event()
        answers: list[int] = []
        content = body()

        def ask(path: str) -> None:
            while not ended.is_set():
                before(server)
                connection = http.client.HTTPConnection(HOST, server.ports[port], timeout=LIMIT_S)
                try:
                    connection.request(method, path, content)
                    response = connection.getresponse()
                    response.read()
                    answers.append(response.status)
                except OSError:
                    answers.append(0)
                finally:
                    connection.close()
                ended.wait(every_s)

        threads = [threading.Thread(target=ask, args=(path,)) for path in paths]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        if set(answers) != {status}:
            raise RuntimeError(f"{method} {' and '.join(paths)} had the statuses {sorted(set(answers))}")

    return condition


CONDITIONS: dict[str, tuple[str, Condition]] = {
    "quiet": ("nothing else is asked", quiet),
    "scrapes": (
        "the page of metrics every 100 ms",
        repeated("GET", "/metrics", every_s=0.1, port="metrics"),
    ),
    "probes": (
        "live and ready, each every 20 ms on a new connection, as a kubelet does more rarely",
        repeated("GET", "/v2/health/live", "/v2/health/ready", every_s=0.02),
    ),
    "reloads": (
        "a model of 100 MB is loaded again and again",
        reloads(f"{LARGE}_0", every_s=0),
    ),
    "replaced": ("the model itself is loaded again five times a second at most", reloads("simple", every_s=0.2)),
    "idle": ("10,000 connections that have asked once are open", idle_connections),
    "broken": (
        "a JSON tensor of 16 MB that is not UTF-8 is refused, five times a second at most",
        repeated("POST", "/v2/models/simple/infer", every_s=0.2, body=broken_tensor, status=400),
    ),
}


def watched_server(checkout: Path, models: Path, name: str, pauses: Path) -> Server:
    command = [
        sys.executable,
        str(ROOT / "bench" / "servers" / "watched.py"),
        str(pauses),
        "serve",
        f"--model-repository={models}",
        "--model-control-mode=explicit",
        "--load-model=simple",
        f"--load-model={DELAYED}",
        *(f"--load-model={LARGE}_{index}" for index in range(COPIES)),
        "--http-workers=0",
        f"--http-address={HOST}",
        "--http-port={http}",
        "--metrics-port={metrics}",
        "--allow-grpc=false",
    ]
    server = Server(name, command, FOLDER / f"{name}.log", {"PYTHONPATH": str(checkout)}, folder=checkout)
    server.repository = models
    return server


HEADER = [
    "checkout",
    "condition",
    "case",
    "connections",
    "requests/s",
    "p50, ms",
    "p99",
    "p99.9",
    "pause, ms",
    "errors",
]
Cell = tuple[str, str, str, str]
"""Checkout, condition, case and connections."""


def measure(options: argparse.Namespace) -> list[list[str]]:
    """The rows of the table."""
    models = FOLDER / "models"
    build(models)
    cases = [CASES[key] for key in options.cases]
    requests_of = {}
    for case in cases:
        body, headers = case.body()
        requests_of[case.key] = write_requests(case.key, body, headers=headers)
    results: dict[Cell, list[ClientResult]] = defaultdict(list)
    longest: dict[Cell, float] = defaultdict(float)
    with ExitStack() as stack:
        servers: dict[str, tuple[Server, Path]] = {}
        for index, checkout in enumerate(options.checkouts.split(",")):
            pauses = FOLDER / f"{index}.pauses"
            pauses.unlink(missing_ok=True)
            server = stack.enter_context(watched_server(Path(checkout).resolve(), models, str(index), pauses))
            servers[checkout] = server, pauses
            for case in cases:
                run_client(server.url(case.path), requests_of[case.key], connections=16, seconds=1)
        for _, condition, (checkout, (server, pauses)) in product(range(options.rounds), options.only, servers.items()):
            before = len(pauses_us(pauses))
            with CONDITIONS[condition][1](server):
                for case, connections in product(cases, options.connections):
                    cell = (checkout, condition, case.key, connections)
                    url, asked = server.url(case.path), requests_of[case.key]
                    results[cell].append(run_client(url, asked, connections=int(connections), seconds=options.seconds))
                    longest[cell] = max([longest[cell], *pauses_us(pauses)[before:]])
    rows = []
    for cell, found in results.items():
        medians = [
            statistics.median(getattr(each, name) for each in found) for name in ("rate", "p50_ms", "p99_ms", "p999_ms")
        ]
        errors = sum(each.errors for each in found)
        rows.append([*cell, *map(number, medians), number(longest[cell] / 1000), str(errors)])
    return rows


def main(arguments: Sequence[str]) -> None:
    conditions = "; ".join(f"{name}: {about}" for name, (about, _) in CONDITIONS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench tails", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_among(tuple(CONDITIONS)), default=list(CONDITIONS), help=conditions)
    parser.add_argument("--checkouts", default=str(ROOT), help="folders of checkouts, separated by commas")
    parser.add_argument("--cases", type=names_among(tuple(CASES)), default=["a-json"], help="what is asked")
    parser.add_argument("--connections", type=names_among(("1", "16", "64")), default=["16", "64"])
    parser.add_argument("--rounds", type=positive, default=5, help="rounds of each cell; the median counts")
    parser.add_argument("--seconds", type=positive, default=3, help="of a round")
    options = parser.parse_args(arguments)
    watch = LoadWatch()
    print(table(HEADER, measure(options)))
    print(f"\n{options.rounds} rounds of {options.seconds} s. Meanwhile {watch.load().text()}.")
