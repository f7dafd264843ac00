"""The comparisons of models in Python with ONNX models, and what only Python models do."""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench import wrk
from bench.cases import CASES as MODEL_CASES
from bench.cases import Array, Case
from bench.figures import Figures
from bench.machine_load import tree_members
from bench.plain import measure
from bench.python.models import ADD_SUB, CALLER, CALLS, CLOCK, ECHO, RESPONSES, STREAMER
from bench.python.pipe import round_trips_us
from bench.servers.server import Server
from bench.turns import HttpLoad, Turn, Turns
from core.engine.in_process import make_engine
from core.frontend.bridge import ThreadBridge
from core.inference.request import InferenceRequest, InputTensor
from core.lifecycle.options import EngineOptions
from tests.contract.servers.ports import HOST

PYTHON, ONNX = "Python", "ONNX"
_BY_KEY = {case.key: case for case in MODEL_CASES}
_SMALL, _LARGE = _BY_KEY["a-binary"], _BY_KEY["b"]
_STREAMS = 100
_LIMIT_S = 60.0
_ANSWER_LIMIT_S = 60


class Bench:
    """One server with all models; `pairs` turns of `seconds` for each comparison."""

    def __init__(self, results: Figures, server: Server, repository: Path, build: Path, *, pairs: int, seconds: float):
        self.results = results
        self.server = server
        self.repository = repository
        self._build = build
        self._pairs = pairs
        self._seconds = seconds

    def compare(self, case: Case, python_model: str, connections: int) -> dict[str, list[Turn]]:
        """The turns of the ONNX model of `case` and of the Python model with the same inputs and outputs."""
        python = replace(case, key=f"{case.key}-python", model=python_model)
        loads = {}
        for name, one in ((PYTHON, python), (ONNX, case)):
            script = wrk.write_script(self._build / f"{one.key}.lua", *one.body())
            loads[name] = HttpLoad(self.server, one.model, self.server.url(one.path), script)
        self._check_same(python, case)
        with (turns := Turns(loads, connections=connections, seconds=self._seconds)):
            rounds = [turns.round(number) for number in range(self._pairs)]
        found = {name: [each[name] for each in rounds] for name in loads}
        title = f"{case.title}, {connections} connections"
        for name, own in found.items():
            self.results.note(title, f"requests/s; {name}", "requests/s", [turn.requests_per_second for turn in own])
            self.results.note(title, f"CPU per request; {name}", "µs", [turn.cpu_us for turn in own])
        self.results.at_most(title, "errors", 0, turns.errors)
        return found

    def _check_same(self, python: Case, onnx: Case) -> None:
        """RuntimeError if the models answer differently, or the ONNX model not as its session does."""
        measure.check_answer(self.server, onnx, self.repository)
        one, other = (self._answer(case) for case in (python, onnx))
        if not all(np.array_equal(one[name], other[name]) for name in onnx.outputs):
            raise RuntimeError(f"'{python.model}' does not answer as '{onnx.model}' does")

    def _answer(self, case: Case) -> dict[str, Array]:
        status, headers, content = self.server.exchange("POST", case.path, *case.body())
        if status != 200:
            raise RuntimeError(f"'{case.model}' answers {status}: {content.decode(errors='replace')}")
        return case.answer(content, headers["Inference-Header-Content-Length"])


def _ratio(found: dict[str, list[Turn]], of: Callable[[Turn], float]) -> float:
    """The median of the pairs' ratios, Python over ONNX."""
    return statistics.median(of(a) / of(b) for a, b in zip(found[PYTHON], found[ONNX], strict=True))


def _rate(turn: Turn) -> float:
    return turn.requests_per_second


def small(bench: Bench) -> None:
    for connections in (16, 64):
        found = bench.compare(_SMALL, ADD_SUB, connections)
        title = f"{_SMALL.title}, {connections} connections"
        bench.results.at_least(title, "requests/s over the ONNX model's", 0.65, _ratio(found, _rate))
        bench.results.at_most(title, "CPU over the ONNX model's", 2.3, _ratio(found, lambda turn: turn.cpu_us))


def single(bench: Bench) -> None:
    found = bench.compare(_SMALL, ADD_SUB, 1)
    more = statistics.median(1e6 / _rate(a) - 1e6 / _rate(b) for a, b in zip(found[PYTHON], found[ONNX], strict=True))
    bench.results.at_most(f"{_SMALL.title}, 1 connection", "µs more than the ONNX model", 110, more)


def large(bench: Bench) -> None:
    for connections in (1, 16):
        found = bench.compare(_LARGE, ECHO, connections)
        title = f"{_LARGE.title}, {connections} connections"
        bench.results.at_least(title, "requests/s over the ONNX model's", 0.6, _ratio(found, _rate))


def pipe(bench: Bench) -> None:
    trips = round_trips_us(3)
    bench.results.note("128 bytes through multiprocessing.Pipe and back", "round trip", "µs", trips)


def calls(bench: Bench) -> None:
    """A call of a Python model to the ONNX model, beside the same request to an engine in the process that asks."""
    case = replace(_SMALL, model=CALLER, outputs=("SECONDS",))
    nested: list[float] = []
    for _ in range(10):
        status, headers, content = bench.server.exchange("POST", case.path, *case.body())
        if status != 200:
            raise RuntimeError(f"'{CALLER}' answers {status}: {content.decode(errors='replace')}")
        head = int(headers["Inference-Header-Content-Length"])
        nested.append(float(np.median(np.frombuffer(content[head:], np.float64))) * 1e6)
    direct = _direct_us(bench.repository)
    title = "add/sub of 16 integers, asked by a model"
    bench.results.note(title, f"a call; median of {CALLS}", "µs", nested)
    bench.results.note(title, "a call to an engine in the same process", "µs", direct)
    more = statistics.median(nested) - statistics.median(direct)
    bench.results.at_most(title, "µs more than a direct call", 60, more)


def _direct_us(repository: Path) -> list[float]:
    options = EngineOptions(
        repositories=(str(repository),),
        control_mode="explicit",
        load_models=("simple",),
        gpu_metrics=False,
        cpu_metrics=False,
    )
    engine = make_engine(options)
    engine.start()
    engine.wait_loaded(_LIMIT_S)
    bridge = ThreadBridge()
    arrays = [array.astype(np.int32) for array in _SMALL.arrays().values()]
    medians = []
    for _ in range(10):
        took = []
        for _ in range(CALLS):
            began = time.perf_counter()
            inputs = [InputTensor(f"INPUT{n}", "INT32", array.shape, array) for n, array in enumerate(arrays)]
            response = bridge.infer(engine.model("simple"), InferenceRequest("simple", inputs))
            took.append(time.perf_counter() - began)
            if response.error is not None:
                raise response.error
        medians.append(statistics.median(took) * 1e6)
    engine.begin_exit()
    engine.finish(_LIMIT_S)
    return medians


def stream(bench: Bench) -> None:
    """Responses a second of one request after another, as events over HTTP."""
    rates: list[float] = []
    first_ms: list[float] = []
    connection = http.client.HTTPConnection(HOST, bench.server.port, timeout=_ANSWER_LIMIT_S)
    for _ in range(_STREAMS):
        began = time.perf_counter()
        connection.request("POST", f"/v2/models/{STREAMER}/generate_stream", body=json.dumps({"TEXT": "x"}))
        answer = connection.getresponse()
        parts = [answer.read1(1 << 16)]
        first_ms.append((time.perf_counter() - began) * 1e3)
        while part := answer.read1(1 << 20):
            parts.append(part)
        took_s = time.perf_counter() - began
        events = b"".join(parts).count(b"\n\n")
        if answer.status != 200 or events != RESPONSES:
            raise RuntimeError(f"'{STREAMER}' answers {answer.status} with {events} events, not {RESPONSES}")
        rates.append(RESPONSES / took_s)
    title = f"{RESPONSES} responses of 16 bytes to one request, over HTTP"
    figure = bench.results.note(title, "responses/s", "responses/s", rates)
    bench.results.note(title, "the first event after the request", "ms", first_ms)
    bench.results.at_least(title, "responses/s", 50_000, figure.median)
    sent_ms = [_sent_before_ms(connection) for _ in range(_STREAMS)]
    connection.close()
    title = "from a model's send to the first event at the client"
    figure = bench.results.note(title, "time", "ms", sent_ms)
    bench.results.at_most(title, "ms", 2.0, figure.median)


def _sent_before_ms(connection: http.client.HTTPConnection) -> float:
    """How long ago, in milliseconds, the model sent the first event of a stream when it arrives."""
    connection.request("POST", f"/v2/models/{CLOCK}/generate_stream", body=json.dumps({"TEXT": "x"}))
    answer = connection.getresponse()
    event = answer.read1(1 << 16)
    arrived_ns = time.monotonic_ns()
    answer.read()
    return (arrived_ns - int(json.loads(event.removeprefix(b"data: "))["WORD"])) / 1e6


def start(bench: Bench) -> None:
    """The time of a load and the memory of the process that it starts. The server is in explicit mode for it."""
    seconds: list[float] = []
    memory: list[float] = []
    for _ in range(7):
        _ask(bench.server, f"/v2/repository/models/{ADD_SUB}/unload")
        _wait_until_gone(bench.server)
        before = tree_members(bench.server.process.pid)
        began = time.perf_counter()
        _ask(bench.server, f"/v2/repository/models/{ADD_SUB}/load")
        seconds.append(time.perf_counter() - began)
        (stub,) = tree_members(bench.server.process.pid) - before or {0}
        memory.append(_private_mb(stub))
    title = "a Python model is loaded: a process, Python, numpy"
    took = bench.results.note(title, "load", "s", seconds)
    used = bench.results.note(title, "memory of its process that no other shares", "MB", memory)
    bench.results.at_most(title, "s", 0.25, took.median)
    bench.results.at_most(title, "MB", 35, used.median)


def _ask(server: Server, path: str) -> None:
    status, _, content = server.exchange("POST", path)
    if status != 200:
        raise RuntimeError(f"{path} answers {status}: {content.decode(errors='replace')}")


def _wait_until_gone(server: Server) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        _, _, content = server.exchange("POST", "/v2/repository/index")
        if any(entry["name"] == ADD_SUB and entry.get("reason") == "unloaded" for entry in json.loads(content)):
            return
        time.sleep(0.02)
    raise RuntimeError(f"'{ADD_SUB}' is not unloaded after {_LIMIT_S:g} s")


def _private_mb(process: int) -> float:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:"))) / 1024


CASES: dict[str, Callable[[Bench], None]] = {
    "small": small,
    "single": single,
    "large": large,
    "pipe": pipe,
    "calls": calls,
    "stream": stream,
    "start": start,
}
