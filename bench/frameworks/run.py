"""Each framework beside ONNX Runtime on a tiny model, and beside its own library on one that computes.

    python -m bench frameworks                         about 3 minutes
    python -m bench frameworks --pairs 20

A tiny model is a linear layer of 16 floats (for trees, ten of depth 3), asked over 16 connections by turns with the
ONNX one on that server. A model that computes has eight layers of 1,024 (500 trees of depth 6) and gets 32 rows at
a time over one connection; the bare loop of its library runs in a process of its own with one thread, and takes turns.
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
from bench.arguments import positive
from bench.frameworks.models import LARGE, SMALL, Model, models, write
from bench.machine_load import LoadWatch
from bench.servers.server import Server, trident
from bench.tables import number, table
from bench.turns import HttpLoad, Ratio, Turns
from tests.project import ROOT

BUILD = ROOT / "build" / "bench" / "frameworks"
ROWS = 32


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


def _tiny(server: Server, options: argparse.Namespace) -> list[list[str]]:
    """A row for each model beside the ONNX one, over 16 connections."""
    onnx, *others = models()
    rows = []
    for model in others:
        loads = {each.name: _load(server, each, SMALL, 1) for each in (onnx, model)}
        with Turns(loads, connections=16, seconds=options.turn) as turns:
            pairs = [turns.round(index) for index in range(options.pairs)]
        rates = [[pair[name].requests_per_second for pair in pairs] for name in loads]
        costs = [[pair[name].cpu_us for pair in pairs] for name in loads]
        rows.append([model.name, *_compared(*rates), *_compared(*costs), str(turns.errors)])
    return rows


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


def _computing(repository: Path, options: argparse.Namespace) -> list[list[str]]:
    """A row for each model with a library: the bare loop, and the server over one connection, by turns."""
    rows = []
    for model in models():
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
    return rows


def _compared(one: Sequence[float], other: Sequence[float]) -> list[str]:
    ratio = Ratio.of(other, one)
    interval = f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
    return [number(statistics.median(one)), number(statistics.median(other)), interval]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench frameworks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=positive, default=40, help="pairs of turns of each tiny model")
    parser.add_argument("--rounds", type=positive, default=7, help="rounds of each model that computes")
    parser.add_argument("--turn", type=float, default=0.25, help="seconds of a turn")
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.bare:
        name, _, version = options.bare.partition(":")
        (model,) = [model for model in models() if model.name == name]
        print(_library_rate(model, Path(version), 2))
        return
    wrk.require_or_exit()
    watch = LoadWatch()
    small = BUILD / "small"
    for model in models():
        write(model, small, SMALL)
    with trident(small, BUILD / "server.log") as server:
        rows = _tiny(server, options)
    header = ["model", "requests/s, ONNX", "framework", "ratio", "CPU µs/request, ONNX", "framework", "ratio", "errors"]
    print(table(header, rows))
    print()
    print(table(["model", "runs/s, library", "server", "ratio"], _computing(BUILD / "large", options)))
    print(f"\nMeanwhile {watch.seen().text()}.")
