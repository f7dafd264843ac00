"""The comparisons of models in Python with ONNX models, and what only Python models do."""

from __future__ import annotations

import argparse
import http.client
import json
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench import plain, wrk
from bench.cases import CASES as MODEL_CASES
from bench.cases import Array, Case
from bench.machine import tree_members
from bench.models.served import CONFIG, SHIPPED, identity, write
from bench.python_pipe import round_trips_us
from bench.results import Figures, Publication, add_publication_arguments, names_among, positive
from bench.servers.server import Server, trident
from bench.turns import HttpLoad, Turn, Turns
from tests.contract.servers.ports import HOST
from tests.project import ROOT
from trident.core.engine.in_process import make_engine
from trident.core.frontend.bridge import ThreadBridge
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.lifecycle.options import EngineOptions

CALLS = 200
"""How many requests `caller` sends for one of its own."""
RESPONSES = 1000
"""How many responses `streamer` sends for one request."""
RESPONSE_BYTES = 16

ADD_SUB = "python_simple"
ECHO = "python_identity"
CALLER = "caller"
STREAMER = "streamer"
CLOCK = "clock"

_HEAD = """
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]
"""
_ADD_SUB = """
    def respond(self, request):
        a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)])
"""
_ECHO = """
    def respond(self, request):
        array = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", array)])
"""
_CALLER = f"""
    def respond(self, request):
        inputs = [
            pb_utils.get_input_tensor_by_name(request, name).as_numpy().copy() for name in ("INPUT0", "INPUT1")
        ]
        took = np.empty((1, {CALLS}), np.float64)
        for index in range({CALLS}):
            began = time.perf_counter()
            asked = pb_utils.InferenceRequest(
                model_name="simple",
                requested_output_names=["OUTPUT0", "OUTPUT1"],
                inputs=[pb_utils.Tensor("INPUT0", inputs[0]), pb_utils.Tensor("INPUT1", inputs[1])],
            )
            response = asked.exec()
            took[0, index] = time.perf_counter() - began
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
        return pb_utils.InferenceResponse([pb_utils.Tensor("SECONDS", took)])
"""
_STREAMER = f"""
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for _ in range({RESPONSES}):
                tensor = pb_utils.Tensor("WORD", np.array([b"{"x" * RESPONSE_BYTES}"], np.object_))
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# The first response has the time at which it is sent, in nanoseconds of the machine's monotonic clock.
_CLOCK = """
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            now = str(time.monotonic_ns()).encode()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("WORD", np.array([now], np.object_))]))
            time.sleep(0.005)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_PAIR = "".join(
    f'{side} {{ name: "{side.upper()}{n}" data_type: TYPE_INT32 dims: [ 16 ] }}\n'
    for side in ("input", "output")
    for n in range(2)
)
_INPUTS = "".join(f'input {{ name: "INPUT{n}" data_type: TYPE_INT32 dims: [ 16 ] }}\n' for n in range(2))
_ONE = "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
_PYTHON = 'backend: "python"\n' + _ONE


def build(repository: Path) -> None:
    """Write all models under `repository`, which is emptied first."""
    shutil.rmtree(repository, ignore_errors=True)
    shutil.copytree(SHIPPED / "simple", repository / "simple")
    echo = CONFIG.format(batch=64, dims_in="-1", dims_out="-1", batching="")
    write(repository / "identity", echo, identity(["D"]))
    build_add_sub(repository)
    _write(repository / ECHO, echo.replace("onnxruntime", "python"), _HEAD + _ECHO)
    seconds = f'output {{ name: "SECONDS" data_type: TYPE_FP64 dims: [ {CALLS} ] }}\n'
    _write(repository / CALLER, _PYTHON + "max_batch_size: 1\n" + _INPUTS + seconds, _HEAD + _CALLER)
    words = (
        "model_transaction_policy { decoupled: true }\n"
        'input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }\n'
        'output { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] }\n'
    )
    _write(repository / STREAMER, _PYTHON + words, _HEAD + _STREAMER)
    _write(repository / CLOCK, _PYTHON + words, _HEAD + _CLOCK)


def build_add_sub(repository: Path) -> None:
    """Write the model that adds and subtracts, alone."""
    _write(repository / ADD_SUB, _PYTHON + "max_batch_size: 64\ndynamic_batching { }\n" + _PAIR, _HEAD + _ADD_SUB)


def _write(folder: Path, config: str, code: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    (folder / "1" / "model.py").write_text(code)


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
        plain.check_answer(self.server, onnx, self.repository)
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


#         python -m bench python                              all of it, about 3 minutes
#         python -m bench python --only small,single --pairs 40
#         make bench BENCH_ARGS='python --only stream'
#
# The cases; the first three by turns of a fraction of a second, on one server:
#
#         small     add/sub of 16 integers at 16 and 64 connections
#         single    the same at one connection
#         large     600 KB echoed at 1 and 16 connections
#         pipe      a bare round trip through multiprocessing.Pipe
#         calls     a Python model asks the ONNX model, beside an engine in the process that asks
#         stream    1,000 responses of 16 bytes to one request, as events over HTTP, and how soon the first one arrives
#         start     the time of a load, and the memory of the process that it starts


BUILD = ROOT / "build" / "bench" / "python"
CONDITIONS = "Server, models and clients share the cores."


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench python", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_among(tuple(CASES)), default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--pairs", type=positive, default=60, help="pairs of turns; the median of their ratios counts")
    parser.add_argument("--turn", type=float, default=0.25, help="seconds of each turn")
    parser.add_argument("--http-workers", type=int, default=0, help="front ends before an engine process")
    add_publication_arguments(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    wrk.require_or_exit()
    BUILD.mkdir(parents=True, exist_ok=True)
    repository = BUILD / "models"
    build(repository)
    command = shlex.join(["python", "-m", "bench", "python", *arguments])
    publication = Publication(options)
    results = Figures(command, CONDITIONS)
    server = trident(repository, BUILD / "server.log")
    server.command += [
        f"--http-workers={options.http_workers}",
        "--model-control-mode=explicit",
        "--load-model=*",
    ]
    with server:
        bench = Bench(results, server, repository, BUILD, pairs=options.pairs, seconds=options.turn)
        for name in options.only:
            print(f"{name}: begins", file=sys.stderr, flush=True)
            CASES[name](bench)
    part = "" if set(options.only) == set(CASES) else "-" + "-".join(options.only)
    results.publish(publication, f"-python{part}")
