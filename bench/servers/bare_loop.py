"""`session.run` in a loop, without a server: the upper bound of a server's speed and the lower bound of its memory.

    python -m bench.servers.bare_loop speed MODEL.onnx --batch 4 --threads 2 --seconds 3
    python -m bench.servers.bare_loop memory MODEL.onnx …

Prints one JSON object. It imports only numpy and ONNX Runtime; otherwise its memory would not be a baseline.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

DTYPES = {"tensor(float)": np.float32, "tensor(int32)": np.int32}
# The size of a free dimension after the batch dimension: that of the 600 KB tensor.
FREE_DIMENSION = 150_000


def make_session(model: Path, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def random_feeds(session: Any, batch: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    feeds = {}
    for tensor in session.get_inputs():
        shape = [batch, *(dim if isinstance(dim, int) else FREE_DIMENSION for dim in tensor.shape[1:])]
        feeds[tensor.name] = (random.random(shape) * 100).astype(DTYPES[tensor.type])
    return feeds


def resident_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS in /proc/self/status")


def speed(model: Path, batch: int, threads: int, seconds: float) -> dict[str, float]:
    """Measure inferences (items) per second, after one run to warm up."""
    session = make_session(model, threads)
    feeds = random_feeds(session, batch)
    session.run(None, feeds)
    runs = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        session.run(None, feeds)
        runs += 1
    return {"inferences_per_second": runs * batch / elapsed, "resident_mb": resident_mb()}


def memory(models: list[Path]) -> dict[str, float]:
    """Measure resident memory with all `models` loaded and each run once with one item."""
    sessions = [make_session(model, 0) for model in models]
    for session in sessions:
        session.run(None, random_feeds(session, 1))
    return {"resident_mb": resident_mb()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["speed", "memory"])
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    if options.what == "memory":
        result = memory(options.models)
    else:
        result = speed(options.models[0], options.batch, options.threads, options.seconds)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
