"""Compares a call of the library with one of the bare ONNX Runtime session, for add/sub in the same thread.

    python -m bench.library [--rounds 40]

Both are called in turns, so that a busy machine slows both. Prints the CPU time that the process takes for a call, in
µs: the median of the rounds and their quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import onnxruntime

import trident
from bench.machine import cores, cpu_model
from tests.project import ROOT
from trident.app.version import BUILD

_CALLS = 1000
_MODELS = ROOT / "deploy" / "models"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    row = np.arange(16, dtype=np.int32)[None]
    session = onnxruntime.InferenceSession(_MODELS / "simple" / "1" / "model.onnx", providers=["CPUExecutionProvider"])
    feed = {"INPUT0": row, "INPUT1": row}
    with trident.Server(_MODELS, load_model="simple", model_control_mode="explicit") as server:
        model = server.model("simple")
        taken: dict[str, list[float]] = {"session": [], "library": [], "difference": []}
        for _ in range(rounds):
            bare = _microseconds(lambda: session.run(None, feed))
            ours = _microseconds(lambda: model.infer(feed))
            for name, each in (("session", bare), ("library", ours), ("difference", ours - bare)):
                taken[name].append(each)
    print(f"{cpu_model()}, {cores()} cores; {BUILD}; {rounds} rounds of {_CALLS} calls")
    for name, found in taken.items():
        low, middle, high = statistics.quantiles(found, n=4)
        print(f"{name:10} {middle:6.1f} µs  ({low:.1f} to {high:.1f})")


def _microseconds(call: Callable[[], object]) -> float:
    begin = time.process_time()
    for _ in range(_CALLS):
        call()
    return (time.process_time() - begin) / _CALLS * 1e6


if __name__ == "__main__":
    main()
