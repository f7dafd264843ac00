"""Compares a call of the library with one of the bare ONNX Runtime session, for add/sub in the same thread, and with
one of tritonclient over HTTP.

    python -m bench library [--rounds 40]

They are called in turns, so that a busy machine slows all. Prints how long a call takes, in µs: the median of the
rounds and their quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from tritonclient.http import InferenceServerClient, InferInput

import trident
from bench.machine import cores, cpu_model
from bench.servers import server as servers
from tests.contract.servers.ports import HOST
from tests.project import ROOT
from trident.app.version import BUILD

_CALLS = 1000
_MODELS = ROOT / "deploy" / "models"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args(arguments).rounds
    row = np.arange(16, dtype=np.int32)[None]
    session = onnxruntime.InferenceSession(_MODELS / "simple" / "1" / "model.onnx", providers=["CPUExecutionProvider"])
    feed = {"INPUT0": row, "INPUT1": row}
    inputs = [InferInput(name, [1, 16], "INT32") for name in feed]
    for each in inputs:
        each.set_data_from_numpy(row)
    with (
        tempfile.TemporaryDirectory() as folder,
        servers.trident(_MODELS, Path(folder, "log")) as http,
        InferenceServerClient(f"{HOST}:{http.ports['http']}") as client,
        trident.Server(_MODELS, load_model="simple", model_control_mode="explicit") as server,
    ):
        model = server.model("simple")
        calls: dict[str, tuple[Callable[[], object], int]] = {
            "session": (lambda: session.run(None, feed), _CALLS),
            "library": (lambda: model.infer(feed), _CALLS),
            "HTTP": (lambda: client.infer("simple", inputs), _CALLS // 10),
        }
        taken: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, (call, times) in calls.items():
                taken[name].append(_microseconds(call, times))
    taken["difference"] = [ours - bare for ours, bare in zip(taken["library"], taken["session"], strict=True)]
    print(f"{cpu_model()}, {cores()} cores; {BUILD}; {rounds} rounds of {_CALLS} calls")
    for name, found in taken.items():
        low, middle, high = statistics.quantiles(found, n=4)
        print(f"{name:10} {middle:6.1f} µs  ({low:.1f} to {high:.1f})")


def _microseconds(call: Callable[[], object], times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times * 1e6


if __name__ == "__main__":
    main(sys.argv[1:])
