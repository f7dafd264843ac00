"""An ensemble of two add/sub steps beside a single step: requests/s and CPU time over HTTP, and the engine's CPU alone.

    python -m bench ensembles                          about 2 minutes
    python -m bench ensembles --connections 1,64 --pairs 20
    python -m bench ensembles --options=--http-workers=1

Both models are on one server and are asked by turns of a fraction of a second. A ratio is the ensemble's figure over
that of the single step: the median of the pairs' ratios, with the 95 % interval of that median in brackets. The
engine's figure is the CPU time of one request without a front end, and what the ensemble adds to its two steps.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from bench import wrk
from bench.cases import CASES
from bench.machine import LoadWatch
from bench.results import names_among, number, positive, table
from bench.servers.server import Server, trident
from bench.turns import HttpLoad, Ratio, Turn, Turns
from tests.project import ROOT
from trident.core.engine.in_process import InferenceEngine, make_engine
from trident.core.inference.pending_request import Deferred, PendingRequest
from trident.core.inference.request import InferenceRequest, PackedInputs
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import layout_of
from trident.core.lifecycle.options import EngineOptions

BUILD = ROOT / "build" / "bench" / "ensembles"
MODELS = ("first", "second", "ensemble")
BURSTS, BURST = 60, 100
_BATCH = 64
_PAIRS = {"INPUT0": "sum", "INPUT1": "difference"}


def build(repository: Path) -> None:
    """`first` and `second` are add/sub of 16 integers; `ensemble` runs one after the other."""
    shipped = (ROOT / "deploy" / "models" / "simple" / "1" / "model.onnx").read_bytes()
    for name in ("first", "second"):
        _put(repository / name / "1" / "model.onnx", shipped)
        _put(repository / name / "config.pbtxt", f"max_batch_size: {_BATCH}\n".encode())
    tensors = " ".join(
        f'{side} {{ name: "{side.upper()}{n}" data_type: TYPE_INT32 dims: [ 16 ] }}'
        for side in ("input", "output")
        for n in (0, 1)
    )
    first = _step("first", {name: name for name in _PAIRS}, {"OUTPUT0": "sum", "OUTPUT1": "difference"})
    second = _step("second", _PAIRS, {"OUTPUT0": "OUTPUT0", "OUTPUT1": "OUTPUT1"})
    config = f'platform: "ensemble" max_batch_size: {_BATCH} {tensors} ensemble_scheduling {{ {first} {second} }}'
    (repository / "ensemble" / "1").mkdir(parents=True, exist_ok=True)
    _put(repository / "ensemble" / "config.pbtxt", config.encode())


def _step(model: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    maps = [
        f'{field} {{ key: "{name}" value: "{tensor}" }}'
        for field, pairs in (("input_map", inputs), ("output_map", outputs))
        for name, tensor in pairs.items()
    ]
    return f'step {{ model_name: "{model}" model_version: -1 {" ".join(maps)} }}'


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


class EngineCost:
    """Requests on the thread that submits them, as a front end in the same process makes them."""

    def __init__(self, engine: InferenceEngine) -> None:
        self._engine = engine
        self._deferred = Deferred()
        self._layout = layout_of([("INPUT0", "INT32", (1, 16), 64), ("INPUT1", "INT32", (1, 16), 64)])
        self._content = memoryview(np.arange(32, dtype=np.int32).tobytes())

    def ask(self, model: str) -> None:
        responses: list[InferenceResponse] = []
        request = InferenceRequest(model, PackedInputs(self._layout, self._content))
        self._engine.model(model).submit(PendingRequest(request, responses.append, defer=self._deferred.add))
        self._deferred.run()
        while not responses:  # it was executed by its own thread
            time.sleep(0.0001)
        if responses[0].error is not None:
            raise responses[0].error

    def burst(self, model: str) -> float:
        """CPU µs of one request: of all threads, the mean of many requests in a row."""
        start = time.process_time_ns()
        for _ in range(BURST):
            self.ask(model)
        return (time.process_time_ns() - start) / BURST / 1000


def engine_costs(repository: Path) -> dict[str, list[float]]:
    """The bursts of each model, by turns."""
    with tempfile.TemporaryDirectory() as cache:
        options = EngineOptions(
            repositories=(str(repository),), cache_directory=cache, cpu_metrics=False, gpu_metrics=False
        )
        engine = make_engine(options)
        engine.start()
        if not engine.wait_loaded(60):
            raise SystemExit("the models were not loaded in 60 s")
        cost = EngineCost(engine)
        for model in MODELS:
            cost.burst(model)
        costs: dict[str, list[float]] = {model: [] for model in MODELS}
        for _ in range(BURSTS):
            for model, found in costs.items():
                found.append(cost.burst(model))
        engine.begin_exit()
        engine.finish(10)
    return costs


def _over_http(server: Server, connections: int, options: argparse.Namespace) -> list[str]:
    (case,) = [case for case in CASES if case.key == "a-binary"]
    script = wrk.write_script(BUILD / "binary.lua", *case.body())
    loads = {
        model: HttpLoad(server, model, server.url(f"/v2/models/{model}/infer"), script)
        for model in ("first", "ensemble")
    }
    with Turns(loads, connections=connections, seconds=options.turn) as turns:
        pairs = [turns.round(index) for index in range(options.pairs)]
    return [
        str(connections),
        *_compared([pair["first"].requests_per_second for pair in pairs], _rates(pairs)),
        *_compared([pair["first"].cpu_us for pair in pairs], [pair["ensemble"].cpu_us for pair in pairs]),
        str(turns.errors),
    ]


def _rates(pairs: Sequence[dict[str, Turn]]) -> list[float]:
    return [pair["ensemble"].requests_per_second for pair in pairs]


def _compared(one: Sequence[float], other: Sequence[float]) -> list[str]:
    ratio = Ratio.of(other, one)
    interval = f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
    return [number(statistics.median(one)), number(statistics.median(other)), interval]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench ensembles", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=names_among(("1", "16", "64")), default=["1", "16", "64"])
    parser.add_argument("--pairs", type=positive, default=60, help="pairs of turns of each row")
    parser.add_argument("--turn", type=float, default=0.25, help="seconds of a turn")
    parser.add_argument("--options", type=shlex.split, default=[], help="options for the server, in one text")
    options = parser.parse_args(arguments)
    wrk.require_or_exit()
    repository = BUILD / "models"
    build(repository)
    watch = LoadWatch()
    costs = engine_costs(repository)
    with ExitStack() as stack:
        server = trident(repository, BUILD / "server.log")
        server.command += options.options
        stack.enter_context(server)
        rows = [_over_http(server, int(connections), options) for connections in options.connections]
    header = [
        "connections",
        "requests/s, one step",
        "ensemble",
        "ratio",
        "CPU µs/request, one step",
        "ensemble",
        "ratio",
    ]
    print(table([*header, "errors"], rows))
    added = [each - one - two for one, two, each in zip(*costs.values(), strict=True)]
    medians = ", ".join(f"{model} {statistics.median(found):.1f}" for model, found in costs.items())
    least = ", ".join(f"{model} {min(found):.1f}" for model, found in costs.items())
    print(f"\nEngine alone, CPU µs per request: {medians}; least: {least}.")
    print(f"The ensemble adds {statistics.median(added):.1f} to its steps (least of each: {_least_added(costs):.1f}).")
    print(f"\nMeanwhile {watch.seen().text()}.")


def _least_added(costs: dict[str, list[float]]) -> float:
    one, two, both = (min(found) for found in costs.values())
    return both - one - two
