"""Each framework beside ONNX Runtime on a tiny model, and beside its own library on one that computes; its memory.

    python -m bench frameworks                                 about 5 minutes
    python -m bench frameworks --pairs 20 --only tiny
    python -m bench frameworks --models onnx,trees --only computing,footprint
    python -m bench frameworks --tensorflow ENVIRONMENT        with TensorFlow from a virtual environment

A tiny model is a linear layer of 16 floats (for trees, ten of depth 3), asked over 16 connections by turns with the
ONNX one on that server. A model that computes has eight layers of 1,024 (500 trees of depth 6) and gets 32 rows at
a time over one connection; the bare loop of its library runs in a process of its own with one thread, and takes turns.
The footprint is that of a server with one tiny model: the time from its start until it is ready, and the proportional
set size of all its processes after one request.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench import wrk
from bench.arguments import names_among, positive
from bench.frameworks.models import LARGE, SMALL, Model, models, write
from bench.machine_load import LoadWatch
from bench.servers.server import Server, trident
from bench.tables import number, table
from bench.target import TARGET_HEADER, Target
from bench.turns import HttpLoad, Ratio, Turns
from tests.project import ROOT

BUILD = ROOT / "build" / "bench" / "frameworks"
ROWS = 32
PARTS = ("tiny", "computing", "footprint")
LIBRARY_GOAL = 0.95
THREAD_GOAL, PROCESS_GOAL = 0.6, 0.45


def _load(server: Server, model: Model, width: int, rows: int) -> HttpLoad:
    name = f"{model.name}-{width}"
    content = np.random.default_rng(0).random((rows, width), np.float32).tobytes()
    tensor = {
        "name": model.input,
        "shape": [rows, width],
        "datatype": "FP32",
        "parameters": {"binary_data_size": len(content)},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    script = wrk.write_script(BUILD / f"{name}-{rows}.lua", head + content, headers)
    return HttpLoad(server, name, server.url(f"/v2/models/{name}/infer"), script)


def _tiny(server: Server, chosen: Sequence[Model], options: argparse.Namespace) -> tuple[list[list[str]], list[Target]]:
    """A row for each model beside the ONNX one, over 16 connections, and the targets."""
    onnx = models()[0]
    rows, targets = [], []
    for model in chosen:
        if model.name == onnx.name:
            continue
        loads = {each.name: _load(server, each, SMALL, 1) for each in (onnx, model)}
        with Turns(loads, connections=16, seconds=options.turn) as turns:
            pairs = [turns.round(index) for index in range(options.pairs)]
        rates = [[pair[name].requests_per_second for pair in pairs] for name in loads]
        costs = [[pair[name].cpu_us for pair in pairs] for name in loads]
        rows.append([model.name, *_compared(*rates), *_compared(*costs), str(turns.errors)])
        goal, where = (PROCESS_GOAL, "in a process of its own") if model.has_process else (THREAD_GOAL, "on threads")
        what = f"of the ONNX model's requests/s, {where}"
        targets.append(Target(model.name, what, goal, True, Ratio.of(rates[1], rates[0]).median))
    return rows, targets


def _library_rate(model: Model, version: Path, seconds: float) -> float:
    """Runs a second of the bare loop in this process, which a program of its own calls: see `main`."""
    assert model.bare_loop is not None
    run = model.bare_loop(version)
    rows = np.random.default_rng(0).random((ROWS, LARGE), np.float32)
    for _ in range(5):
        run(rows)
    start, count = time.monotonic(), 0
    while time.monotonic() - start < seconds:
        run(rows)
        count += 1
    return count / (time.monotonic() - start)


def _computing(
    repository: Path, chosen: Sequence[Model], options: argparse.Namespace
) -> tuple[list[list[str]], list[Target]]:
    """A row for each model with a library: the bare loop, and the server over one connection, by turns."""
    rows, targets = [], []
    for model in chosen:
        if model.bare_loop is None:
            continue
        own = repository / model.name
        version = write(model, own, LARGE)
        bare, served = [], []
        with trident(own, BUILD / "server.log") as server:
            load = _load(server, model, LARGE, ROWS)
            for _ in range(options.rounds):
                command = [sys.executable, "-m", "bench", "frameworks", f"--bare={model.name}:{version}"]
                ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
                bare.append(float(ran.stdout))
                served.append(wrk.run(load.url, load.script, connections=1, seconds=2).requests / 2)
        rows.append([model.name, *_compared(bare, served)])
        targets.append(
            Target(model.name, "of the bare loop of its library", LIBRARY_GOAL, True, Ratio.of(served, bare).median)
        )
    return rows, targets


def _footprint(repository: Path, chosen: Sequence[Model], options: argparse.Namespace) -> list[list[str]]:
    """A row for each model: seconds until its server is ready, and the server's memory in MB, with their spreads."""
    rows = []
    for model in chosen:
        own = repository / model.name
        write(model, own, SMALL)
        ready, memory = [], []
        for _ in range(options.rounds):
            start = time.monotonic()
            with trident(own, BUILD / "server.log") as server:
                ready.append(time.monotonic() - start)
                load = _load(server, model, SMALL, 1)
                wrk.run(load.url, load.script, connections=1, seconds=1)
                memory.append(server.proportional_mb())
        rows.append([model.name, *(_spread(values) for values in (ready, memory))])
    return rows


def _spread(values: Sequence[float]) -> str:
    return f"{number(statistics.median(values))} [{number(min(values))}, {number(max(values))}]"


def _compared(one: Sequence[float], other: Sequence[float]) -> list[str]:
    ratio = Ratio.of(other, one)
    interval = f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
    return [number(statistics.median(one)), number(statistics.median(other)), interval]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench frameworks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=positive, default=40, help="pairs of turns of each tiny model")
    parser.add_argument("--rounds", type=positive, default=7, help="rounds of each model that computes, and of starts")
    parser.add_argument("--turn", type=float, default=0.25, help="seconds of a turn")
    parser.add_argument("--only", type=names_among(PARTS), default=PARTS, help="parts of the benchmark")
    parser.add_argument("--models", type=lambda text: text.split(","), default=[], help="only these, by their names")
    parser.add_argument("--tensorflow", type=Path, help="a virtual environment with TensorFlow")
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.bare:
        name, _, version = options.bare.partition(":")
        (model,) = [model for model in models() if model.name == name]
        print(_library_rate(model, Path(version), 2))
        return
    wrk.require_or_exit()
    watch = LoadWatch()
    known = {model.name: model for model in models(options.tensorflow)}
    if unknown := set(options.models) - known.keys():
        parser.error(f"not among the models {', '.join(known)}: {', '.join(sorted(unknown))}")
    chosen = [known[name] for name in options.models or known]
    targets: list[Target] = []
    if "tiny" in options.only:
        small = BUILD / "small"
        for model in {"onnx": known["onnx"], **{model.name: model for model in chosen}}.values():
            write(model, small, SMALL)
        with trident(small, BUILD / "server.log") as server:
            rows, reached = _tiny(server, chosen, options)
        costs = ["CPU µs/request, ONNX", "framework", "ratio", "errors"]
        print(table(["model", "requests/s, ONNX", "framework", "ratio", *costs], rows) + "\n", flush=True)
        targets += reached
    if "computing" in options.only:
        rows, reached = _computing(BUILD / "large", chosen, options)
        print(table(["model", "runs/s, library", "server", "ratio"], rows) + "\n", flush=True)
        targets += reached
    if "footprint" in options.only:
        rows = _footprint(BUILD / "alone", chosen, options)
        print(table(["model", "ready after, s", "memory, MB"], rows) + "\n", flush=True)
    if targets:
        print(table(TARGET_HEADER, [target.row() for target in targets]))
    print(f"\nMeanwhile {watch.seen().text()}.")
