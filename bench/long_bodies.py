"""Measures what one long JSON body after another does to the latency of short requests beside it.

    python -m bench long_bodies [--rate 200] [--seconds 20] [--megabytes 1,4,16] [--rounds 3]

Eight clients ask for sums of 16 integers, together at a fixed rate, whatever the answers do: a late request counts from
the moment at which it was due. Beside them one client sends bodies of a length to a model that answers with one number,
each when the one before was answered. In one process, and with two front ends before the engine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shlex
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from bench.on_demand import percentile
from bench.results import Figures, Publication, add_publication_arguments
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess

_CLIENTS = 8
_SHAPES = {"one process": "--http-workers=0", "two front ends": "--http-workers=2"}
_HEADERS = {"Content-Type": "application/json"}
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


def _post(connection: http.client.HTTPConnection, model: str, body: bytes) -> None:
    connection.request("POST", f"/v2/models/{model}/infer", body, _HEADERS)
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise RuntimeError(f"{model}: {response.status}: {content[:300].decode(errors='replace')}")


def measure(port: int, rate: float, seconds: float, body: bytes | None) -> tuple[list[float], list[float]]:
    """Seconds that the short requests took, and the long ones beside them."""
    short: list[float] = []
    long: list[float] = []
    begin = time.monotonic() + 0.5
    end = begin + seconds

    def ask(number: int) -> None:
        connection = http.client.HTTPConnection(HOST, port, timeout=60)
        due = begin + number / rate
        while due < end:
            time.sleep(max(0.0, due - time.monotonic()))
            _post(connection, "short", _SHORT)
            short.append(time.monotonic() - due)
            due += _CLIENTS / rate
        connection.close()

    def send(content: bytes) -> None:
        connection = http.client.HTTPConnection(HOST, port, timeout=60)
        while (began := time.monotonic()) < end:
            _post(connection, "long", content)
            long.append(time.monotonic() - began)
        connection.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(_CLIENTS)]
    if body is not None:
        threads.append(threading.Thread(target=send, args=(body,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return short, long


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench long_bodies", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=200.0, help="short requests a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each case in each round")
    parser.add_argument("--megabytes", default="1,4,16", help="lengths of the bodies")
    parser.add_argument("--rounds", type=int, default=3)
    add_publication_arguments(parser)
    given = parser.parse_args(arguments)
    publication = Publication(given)
    figures = Figures(shlex.join(["python", "-m", "bench", "long_bodies", *arguments]))
    bodies = {"alone": None, **{f"{each} MB": long_body(float(each)) for each in given.megabytes.split(",")}}
    with tempfile.TemporaryDirectory(prefix="long-bodies-") as place:
        write_models(Path(place, "models"))
        for shape, workers in _SHAPES.items():
            found: dict[str, list[tuple[list[float], list[float]]]] = {name: [] for name in bodies}
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
