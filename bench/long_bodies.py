"""Measures what one long JSON body after another does to the latency of short requests beside it.

    python -m bench long_bodies [--rate 200] [--seconds 20] [--megabytes 1,4,16] [--rounds 3]

One client asks for sums of 16 integers at a fixed rate, whatever the answers do: a late request counts from the moment
at which it was due. Beside it another one sends bodies of a length to a model that answers with one number, each when
the one before was answered. In one process, and with two front ends before the engine.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from bench.clients import answered, target_of
from bench.on_demand import percentile
from bench.results import Program
from bench.servers.server import JSON_HEADERS
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from trident.tools.bench.client import LoadClient

_SHAPES = {"one process": "--http-workers=0", "two front ends": "--http-workers=2"}
_SHORT = json.dumps({"inputs": [{"name": "INPUT", "shape": [16], "datatype": "FP32", "data": [1] * 16}]}).encode()


def write_models(repository: Path) -> None:
    """`short` and `long`: one number from a list of numbers."""
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name, size in (("INPUT", "n"), ("OUTPUT", 1))
    ]
    graph = helper.make_graph([helper.make_node("ReduceSum", ["INPUT"], ["OUTPUT"])], "graph", tensors[:1], tensors[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for name in ("short", "long"):
        path = repository / name / "1" / "model.onnx"
        path.parent.mkdir(parents=True)
        onnx.save(model, path)
        (path.parents[1] / "config.pbtxt").write_text('backend: "onnxruntime" max_batch_size: 0')


def long_body(megabytes: float) -> bytes:
    """A request of about this length, of numbers as programs print them."""
    numbers = np.random.default_rng(1).random(int(megabytes * 1e6 / 9)).round(6).tolist()
    item = {"name": "INPUT", "shape": [len(numbers)], "datatype": "FP32", "data": numbers}
    return json.dumps({"inputs": [item]}, separators=(",", ":")).encode()


def measure(port: int, rate: float, seconds: float, body: bytes | None) -> tuple[Sequence[float], Sequence[float]]:
    """Seconds that the short requests took, and the long ones beside them."""

    def client(model: str, content: bytes) -> LoadClient:
        url = f"http://{HOST}:{port}/v2/models/{model}/infer"
        return LoadClient(target_of(url, [content], JSON_HEADERS, connections=1))

    with client("short", _SHORT) as short, client("long", body or b"") as long:
        if body is not None:
            long.start(seconds)
        found = answered(short.run(seconds, due=[number / rate for number in range(int(seconds * rate))]))
        return found, answered(long.finish()) if body is not None else ()


def main(arguments: Sequence[str]) -> None:
    parser = Program("long_bodies", __doc__)
    parser.add_argument("--rate", type=float, default=200.0, help="short requests a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each case in each round")
    parser.add_argument("--megabytes", default="1,4,16", help="lengths of the bodies")
    parser.add_argument("--rounds", type=int, default=3)
    given, publication, figures = parser.begin(arguments)
    bodies = {"alone": None, **{f"{each} MB": long_body(float(each)) for each in given.megabytes.split(",")}}
    with tempfile.TemporaryDirectory(prefix="long-bodies-") as place:
        write_models(Path(place, "models"))
        for shape, workers in _SHAPES.items():
            found: dict[str, list[tuple[Sequence[float], Sequence[float]]]] = {name: [] for name in bodies}
            options = (workers, "--platform=plain", "--allow-grpc=false")
            with ServerProcess(Path(place, "models"), Path(place, workers), *options) as server:
                for _ in range(given.rounds):
                    for name, body in bodies.items():
                        found[name].append(measure(server.http_port, given.rate, given.seconds, body))
            for name, rounds in found.items():
                for part in (50, 99):
                    figures.note(f"{shape}, {name}", f"p{part}", "ms", [percentile(short, part) for short, _ in rounds])
                if bodies[name] is not None:
                    taken = [percentile(long, 50) for _, long in rounds]
                    figures.note(f"{shape}, {name}", "the long request, p50", "ms", taken)
    figures.publish(publication, "-long-bodies")
