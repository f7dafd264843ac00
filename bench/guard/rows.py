"""The rows of the guard: one for every door, and how a server is asked at it."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import numpy as np
import tritonclient.http as triton
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as services

from bench import wrk
from bench.cases import CASES, SEED, Case
from bench.ensembles import run as ensembles
from bench.grpc.cases import infer_message
from bench.grpc.load import GrpcLoad, write_message
from bench.guard.server import PREDICT, AllDoors
from bench.models.served import BATCHING, CONFIG, SHIPPED, identity, write
from bench.python.models import ADD_SUB, build_add_sub
from bench.sequences import run as sequences
from bench.shared_memory.cases import shared_load
from bench.turns import HttpLoad, Load
from bench.vertex.cases import TABULAR, TABULAR_FEATURES, build_tabular
from tests.contract.servers.ports import HOST
from tests.project import ROOT

BUILD = ROOT / "build" / "bench" / "guard"
CACHED = "simple_cached"
_LIMIT_S = 60.0
_ITEMS = 100
_JSON, _BINARY, _ECHO = (next(case for case in CASES if case.key == key) for key in ("a-json", "a-binary", "b"))
_CACHE = "response_cache { enable: true }\n"


class NotServed(Exception):
    """The server does not answer this row's request; the message is its answer."""


@dataclass(frozen=True, slots=True)
class Row:
    """`opened` yields the load on a server; NotServed if the server does not serve it. It may end with the server."""

    key: str
    title: str
    opened: Callable[[AllDoors], AbstractContextManager[Load]]
    connections: int = 16


def build(repository: Path) -> None:
    """Write the models of all rows under `repository`, which is emptied first."""
    shutil.rmtree(repository, ignore_errors=True)
    for name in (_JSON.model, CACHED):
        shutil.copytree(SHIPPED / _JSON.model, repository / name)
    cached = repository / CACHED / "config.pbtxt"
    cached.write_text(cached.read_text().replace(f'"{_JSON.model}"', f'"{CACHED}"').replace(BATCHING, _CACHE))
    write(repository / _ECHO.model, CONFIG.format(batch=64, dims_in="-1", dims_out="-1", batching=""), identity(["D"]))
    build_add_sub(repository)
    ensembles.build(repository)
    sequences.build(repository)
    build_tabular(repository)


def _v2(name: str, case: Case) -> Callable[[AllDoors], AbstractContextManager[Load]]:
    """Requests of the v2 protocol over HTTP."""

    @contextmanager
    def opened(server: AllDoors) -> Iterator[Load]:
        yield _http(server, name, case.model, server.url(case.path), *case.body())

    return opened


def _grpc(name: str, *, streams: bool) -> Callable[[AllDoors], AbstractContextManager[Load]]:
    @contextmanager
    def opened(server: AllDoors) -> Iterator[Load]:
        message = infer_message(_BINARY)
        request = messages.ModelInferRequest.FromString(message)
        try:
            with grpc.insecure_channel(f"{HOST}:{server.grpc_port}") as channel:
                service = services.GRPCInferenceServiceStub(channel)
                if streams:
                    (answer,) = service.ModelStreamInfer(iter([request]), timeout=_LIMIT_S)
                    if answer.error_message:
                        raise NotServed(answer.error_message)
                else:
                    service.ModelInfer(request, timeout=_LIMIT_S)
        except grpc.RpcError as error:
            raise NotServed(str(error.details())) from error
        path = write_message(BUILD / f"{name}.grpc", message)
        yield GrpcLoad(server, _BINARY.model, server.grpc_port, path, streams=streams)

    return opened


@contextmanager
def _shared_memory(server: AllDoors) -> Iterator[Load]:
    with ExitStack() as stack:
        try:
            load = stack.enter_context(shared_load(server, _ECHO, _SHARING, BUILD))
        except RuntimeError as error:
            raise NotServed(str(error)) from error
        yield load


@contextmanager
def _sequence(server: AllDoors) -> Iterator[Load]:
    try:
        load = sequences.sequential_load(server, sequences.PAIRS[0], _SEQUENCES)
    except triton.InferenceServerException as error:
        raise NotServed(str(error)) from error
    yield load


@contextmanager
def _sagemaker_csv(server: AllDoors) -> Iterator[Load]:
    text = "\n".join(",".join(map(str, item)) for item in _items()).encode()
    url = f"http://{HOST}:{server.sagemaker_port}/invocations"
    yield _http(server, "csv", TABULAR, url, text, {"Content-Type": "text/csv"})


@contextmanager
def _vertex_predict(server: AllDoors) -> Iterator[Load]:
    body = json.dumps({"instances": _items()}).encode()
    url = f"http://{HOST}:{server.vertex_port}{PREDICT}"
    yield _http(server, "predict", TABULAR, url, body, {"Content-Type": "application/json"})


def _items() -> list[list[float]]:
    items: list[list[float]] = np.random.default_rng(SEED).random((_ITEMS, TABULAR_FEATURES)).round(4).tolist()
    return items


def _http(server: AllDoors, name: str, model: str, url: str, body: bytes, headers: dict[str, str]) -> HttpLoad:
    """The load of one request, which the server has answered once. NotServed if it refuses it."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=_LIMIT_S):
            pass
    except urllib.error.HTTPError as error:
        raise NotServed(f"{error.code}: {error.read(500).decode(errors='replace')}") from error
    except urllib.error.URLError as error:
        raise NotServed(str(error.reason)) from error
    return HttpLoad(server, model, url, wrk.write_script(BUILD / f"{name}.lua", body, headers))


_SEQUENCES = 16
_SHARING = 4
ROWS = (
    Row("json", "HTTP, JSON", _v2("json", _JSON)),
    Row("binary", "HTTP, binary", _v2("binary", _BINARY)),
    Row("unary", "gRPC, unary", _grpc("unary", streams=False)),
    Row("stream", "gRPC, stream", _grpc("stream", streams=True)),
    Row("shm", "shared memory, 600 KB", _shared_memory, _SHARING),
    Row("python", "Python model", _v2("python", replace(_BINARY, model=ADD_SUB))),
    Row("ensemble", "ensemble of two steps", _v2("ensemble", replace(_BINARY, model="ensemble"))),
    Row("sequences", "sequences", _sequence, _SEQUENCES),
    Row("cache", "cache hit", _v2("cached", replace(_BINARY, model=CACHED))),
    Row("sagemaker", f"SageMaker, CSV of {_ITEMS} items", _sagemaker_csv, 4),
    Row("vertex", f"Vertex AI, predict of {_ITEMS} instances", _vertex_predict, 4),
)
