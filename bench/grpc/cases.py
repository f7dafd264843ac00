"""The comparisons of gRPC with binary HTTP, and with a grpcio server."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from tritonclient.grpc import service_pb2 as messages

from bench import plain, wrk
from bench.cases import CASES as MODEL_CASES
from bench.cases import DATATYPES, Case
from bench.grpc.load import GrpcLoad, write_message
from bench.grpc.servers import BothDoors, GrpcioServer
from bench.results import Figures
from bench.servers.server import resident_mb_of
from bench.shared_memory import LARGE
from bench.turns import HttpLoad, Load, Turn, Turns
from tests.contract.servers.ports import HOST
from tests.contract.servers.session import session_members

_ADD_SUB = next(case for case in MODEL_CASES if case.key == "a-binary")
_ECHO = next(case for case in MODEL_CASES if case.key == "b")
_LATENCY_SECONDS = 2
_IDLE = 1000
_IDLE_SETTLES_S = 3.0
# The preface, and an empty SETTINGS frame: what a client sends before its first call.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


def infer_message(case: Case) -> bytes:
    """The case's request as tritonclient writes it."""
    request = messages.ModelInferRequest(model_name=case.model)
    arrays = case.arrays()
    for name, datatype, shape in case.inputs:
        request.inputs.add(name=name, datatype=datatype, shape=(1, *shape))
        request.raw_input_contents.append(arrays[name].astype(DATATYPES[datatype]).tobytes())
    content: bytes = request.SerializeToString()
    return content


class Bench:
    """Runs `rounds` turns of `seconds` of each load, by turns."""

    def __init__(self, results: Figures, models: Path, build: Path, *, rounds: int, seconds: float) -> None:
        self.results = results
        self.models = models
        self.build = build
        self.rounds = rounds
        self._seconds = seconds

    def server(self) -> BothDoors:
        return BothDoors(self.models, self.build / "trident.log", "--http-workers=0")

    def http(self, server: BothDoors, case: Case) -> HttpLoad:
        script = wrk.write_script(self.build / f"{case.key}.lua", *case.body())
        return HttpLoad(server, case.model, server.url(case.path), script)

    def grpc(
        self,
        server: BothDoors | GrpcioServer,
        case: Case,
        *,
        in_flight: int = 1,
        connections: int = 0,
        streams: bool = False,
    ) -> GrpcLoad:
        message = write_message(self.build / f"{case.key}.grpc", infer_message(case))
        return GrpcLoad(server, case.model, server.grpc_port, message, in_flight, streams, connections)

    def turns(
        self, title: str, loads: Mapping[str, Load], *, connections: int, stretch: int = 1
    ) -> list[dict[str, Turn]]:
        """Run the turns and note them in the results."""
        with Turns(loads, connections=connections, seconds=self._seconds * stretch) as turns:
            pairs = [turns.round(number) for number in range(self.rounds)]
        for name in loads:
            self.results.note(title, f"requests/s; {name}", "requests/s", [p[name].requests_per_second for p in pairs])
            self.results.note(title, f"CPU per request; {name}", "µs", [p[name].cpu_us for p in pairs])
        self.results.at_most(title, "errors", 0, turns.errors)
        return pairs


def _rate(pairs: list[dict[str, Turn]], over: str, under: str) -> float:
    return statistics.median(pair[over].requests_per_second / pair[under].requests_per_second for pair in pairs)


def _cpu(pairs: list[dict[str, Turn]], over: str, under: str) -> float:
    return statistics.median(pair[over].cpu_us / pair[under].cpu_us for pair in pairs)


def unary(bench: Bench) -> None:
    with bench.server() as server:
        plain.check_answer(server, _ADD_SUB, bench.models)
        for connections, goal in ((1, 1.0), (16, 0.8), (64, 0.8)):
            title = f"add/sub, {connections} connections"
            loads: dict[str, Load] = {"gRPC": bench.grpc(server, _ADD_SUB), "HTTP": bench.http(server, _ADD_SUB)}
            pairs = bench.turns(title, loads, connections=connections)
            bench.results.at_least(title, "requests/s over binary HTTP's", goal, _rate(pairs, "gRPC", "HTTP"))
            bench.results.at_most(title, "CPU per request over binary HTTP's", 1.25, _cpu(pairs, "gRPC", "HTTP"))


def channel(bench: Bench) -> None:
    with bench.server() as server:
        title = "add/sub, 64 calls in flight"
        loads = {
            "one connection": bench.grpc(server, _ADD_SUB, in_flight=64, connections=1),
            "64 connections": bench.grpc(server, _ADD_SUB),
        }
        pairs = bench.turns(title, loads, connections=64)
        over = _rate(pairs, "one connection", "64 connections")
        bench.results.at_least(title, "requests/s on one connection over those on 64", 0.9, over)


def stream(bench: Bench) -> None:
    with bench.server() as server:
        title = "add/sub, 16 streams"
        loads = {
            "ModelStreamInfer": bench.grpc(server, _ADD_SUB, streams=True),
            "ModelStreamInfer, 4 messages under way": bench.grpc(server, _ADD_SUB, streams=True, in_flight=4),
            "ModelInfer": bench.grpc(server, _ADD_SUB),
        }
        pairs = bench.turns(title, loads, connections=16)
        over = _rate(pairs, "ModelStreamInfer", "ModelInfer")
        bench.results.at_least(title, "requests/s over ModelInfer's", 1.2, over)


def large(bench: Bench) -> None:
    with bench.server() as server:
        for case, connections, stretch in ((_ECHO, 1, 1), (_ECHO, 16, 1), (LARGE, 1, 8), (LARGE, 4, 8)):
            title = f"{case.title.removesuffix(', binary')}, {connections} connections"
            loads: dict[str, Load] = {"gRPC": bench.grpc(server, case), "HTTP": bench.http(server, case)}
            pairs = bench.turns(title, loads, connections=connections, stretch=stretch)
            bench.results.at_least(title, "requests/s over binary HTTP's", 0.95, _rate(pairs, "gRPC", "HTTP"))


def grpcio(bench: Bench) -> None:
    with bench.server() as server, GrpcioServer(bench.models, "simple", bench.build / "grpcio.log") as other:
        title = "add/sub, 16 connections, beside grpcio"
        loads: dict[str, Load] = {"trident": bench.grpc(server, _ADD_SUB), "grpcio": bench.grpc(other, _ADD_SUB)}
        pairs = bench.turns(title, loads, connections=16)
        bench.results.at_least(title, "requests/s over those of grpcio", 4, _rate(pairs, "trident", "grpcio"))


def latency(bench: Bench) -> None:
    """Whole runs: a client that is stopped between its turns would measure the pauses."""
    with bench.server() as server:
        http, grpc = bench.http(server, _ADD_SUB), bench.grpc(server, _ADD_SUB)
        found: dict[str, list[float]] = {"gRPC": [], "HTTP": []}
        for _ in range(max(3, bench.rounds // 20)):
            load = wrk.run(http.url, http.script, connections=1, seconds=_LATENCY_SECONDS)
            found["HTTP"].append(load.p50_ms * 1000)
            found["gRPC"].append(grpc.run(connections=1, seconds=_LATENCY_SECONDS).p50_ms * 1000)
        title = "add/sub, 1 connection, latency"
        for name, values in found.items():
            bench.results.note(title, f"p50; {name}", "µs", values)
        more = statistics.median(np.subtract(found["gRPC"], found["HTTP"]).tolist())
        bench.results.at_most(title, "µs of p50 more than binary HTTP", 15, more)


def idle(bench: Bench) -> None:
    with bench.server() as server:
        bench.grpc(server, _ADD_SUB).run(connections=16, seconds=_LATENCY_SECONDS)
        worker = max(session_members(server.process.pid), key=resident_mb_of)
        before = resident_mb_of(worker)
        held = [_idle_connection(server.grpc_port) for _ in range(_IDLE)]
        time.sleep(_IDLE_SETTLES_S)
        grown_kb = (resident_mb_of(worker) - before) * 1024 / _IDLE
        for connection in held:
            connection.close()
        bench.results.note("idle connections", "memory of each of 1,000", "KB", [grown_kb])
        bench.results.at_most("idle connections", "KB each", 12, grown_kb)


def _idle_connection(port: int) -> socket.socket:
    """A connection on which a client has said that it is there, and has read the server's settings."""
    connection = socket.create_connection((HOST, port), timeout=30)
    connection.sendall(_HELLO)
    if not connection.recv(4096):
        raise RuntimeError("the server closed a new connection")
    return connection


CASES: dict[str, Callable[[Bench], None]] = {
    "unary": unary,
    "channel": channel,
    "stream": stream,
    "large": large,
    "grpcio": grpcio,
    "latency": latency,
    "idle": idle,
}
