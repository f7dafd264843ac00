"""Measure health while large texts are read; write bench/results/<date>-<cpu>-texts.*.

    python -m bench texts                                   all of it, about 2 minutes
    python -m bench texts --only v2-strings,csv --workers 0 --repeats 5

Another process asks for health every 5 ms while a text is sent and answered. Requests that fell due during a slow
answer count, with the time that they would have waited.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import multiprocessing
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import onnx
import orjson
from onnx import TensorProto, helper

from bench.results import Figures, Publication, add_publication_arguments, names_among, positive
from bench.servers.server import Server
from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.session import TRIDENT
from tests.project import ROOT

MEGABYTE = 1 << 20
WIDTH = 30
_ROWS_AT_MOST = 1 << 23
_JSON = "application/json"
# Bytes of a number and of a string in the texts.
_NUMBER, _STRING = 10.4, 35
_CONFIG = """\
backend: "onnxruntime"
max_batch_size: {batch}
input [ {{ name: "INPUT" data_type: {datatype} dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT" data_type: {datatype} dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""
_TYPES = {"numbers": (TensorProto.FLOAT, "TYPE_FP32"), "strings": (TensorProto.STRING, "TYPE_STRING")}


@dataclass(frozen=True, slots=True)
class Text:
    """One case: `port` is the platform's, `make` makes the body of about `megabytes`, whose answer has `status`."""

    key: str
    title: str
    port: str
    path: str
    media_type: str
    model: str
    megabytes: int
    make: Callable[[int], bytes]
    status: int = 200


def build(repository: Path, model: str) -> Path:
    """Write one of the models, whose output is the first element of each row, into a repository of its own."""
    element_type, datatype = _TYPES[model]
    bounds = [
        helper.make_tensor(name, TensorProto.INT64, [1], [value]) for name, value in (("A", 0), ("B", 1), ("C", 1))
    ]
    graph = helper.make_graph(
        [helper.make_node("Slice", ["INPUT", "A", "B", "C"], ["OUTPUT"])],
        "first",
        [helper.make_tensor_value_info("INPUT", element_type, ["N", "D"])],
        [helper.make_tensor_value_info("OUTPUT", element_type, ["N", 1])],
        bounds,
    )
    folder = repository / model / model
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(_CONFIG.format(batch=_ROWS_AT_MOST, datatype=datatype))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, folder / "1" / "model.onnx")
    return repository / model


def _numbers(megabytes: int) -> bytes:
    """Numbers with commas between them; a whole number of rows."""
    count = int(megabytes * MEGABYTE / _NUMBER) // WIDTH * WIDTH
    values = np.random.default_rng(1).standard_normal(count).round(7)
    return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]


def _rows(megabytes: int) -> list[bytes]:
    values = _numbers(megabytes).split(b",")
    return [b",".join(values[start : start + WIDTH]) for start in range(0, len(values), WIDTH)]


def _strings(megabytes: int) -> list[str]:
    return [f"string number {number:07d} of a body" for number in range(megabytes * MEGABYTE // _STRING)]


def _v2_numbers(megabytes: int) -> bytes:
    text = _numbers(megabytes)
    shape = b"[1,%d]" % (text.count(b",") + 1)
    return b'{"inputs":[{"name":"INPUT","datatype":"FP32","shape":%b,"data":[%b]}]}' % (shape, text)


def _v2_broken(megabytes: int) -> bytes:
    """With an error near its end, where it is found last."""
    text = _v2_numbers(megabytes)
    return text[:-20] + b"x" + text[-20:]


def _v2_nan(megabytes: int) -> bytes:
    """With NaN in the place of every thousandth number, as Triton takes it."""
    start, _, rest = _v2_numbers(megabytes).rpartition(b"[")
    values = rest.split(b",")
    values[1:-1:1000] = [b"NaN"] * len(values[1:-1:1000])
    return start + b"[" + b",".join(values)


def _v2_strings(megabytes: int) -> bytes:
    strings = _strings(megabytes)
    tensor = {"name": "INPUT", "datatype": "BYTES", "shape": [len(strings), 1], "data": strings}
    return orjson.dumps({"inputs": [tensor]})


def _instances(megabytes: int) -> bytes:
    return b'{"instances":[[%b]]}' % b"],[".join(_rows(megabytes))


def _string_instances(megabytes: int) -> bytes:
    return orjson.dumps({"instances": [[text] for text in _strings(megabytes)]})


def _lines(megabytes: int) -> bytes:
    return b"\n".join([b"[%b]" % row for row in _rows(megabytes)])


def _csv(megabytes: int) -> bytes:
    return b"\n".join(_rows(megabytes))


_V2, _INVOKE, _PREDICT = "/v2/models/{}/infer", "/invocations", "/predict"
TEXTS = (
    Text("v2-numbers", "v2 JSON, numbers", "plain", _V2, _JSON, "numbers", 44, _v2_numbers),
    Text("v2-broken", "v2 JSON with an error", "plain", _V2, _JSON, "numbers", 16, _v2_broken, status=400),
    Text("v2-nan", "v2 JSON with NaN", "plain", _V2, _JSON, "numbers", 16, _v2_nan),
    Text("v2-strings", "v2 JSON, strings", "plain", _V2, _JSON, "strings", 44, _v2_strings),
    Text("json", "SageMaker, instances", "sagemaker", _INVOKE, _JSON, "numbers", 44, _instances),
    Text("lines", "SageMaker, JSON Lines", "sagemaker", _INVOKE, "application/jsonlines", "numbers", 44, _lines),
    Text("csv", "SageMaker, CSV", "sagemaker", _INVOKE, "text/csv", "numbers", 95, _csv),
    Text("vertex", "Vertex AI, strings", "vertex", _PREDICT, _JSON, "strings", 44, _string_instances),
)


BUILD = ROOT / "build" / "bench" / "texts"
CONDITIONS = "Server, client and prober share the cores."
INTERVAL_S = 0.005
GOAL_MS = 50.0
# A text with an error is read in one step in the end.
REFUSED_MS = 150.0
LIMIT_S = 120.0
IDLE_S = 2.0
HEALTH = {"plain": "/v2/health/ready", "sagemaker": "/ping", "vertex": "/ping"}


class TextServer(Server):
    """A server of one model on the ports of all platforms, with `workers` front ends, or in one process with none."""

    def __init__(self, repository: Path, log: Path, workers: str) -> None:
        sagemaker, vertex = free_ports(2)
        command = [
            TRIDENT,
            "serve",
            "--platform=plain",
            f"--model-repository={repository}",
            f"--http-address={HOST}",
            "--http-port={port}",
            "--allow-metrics=false",
            "--allow-grpc=false",
            "--allow-sagemaker=true",
            f"--sagemaker-port={sagemaker}",
            "--allow-vertex-ai=true",
            f"--vertex-ai-port={vertex}",
            f"--http-workers={workers}",
            "--http-max-input-size=134217728",
            "--http-worker-memory-bytes=536870912",
        ]
        routes = {"AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/ping"}
        super().__init__("trident", command, log, routes)
        self.ports = {"plain": self.port, "sagemaker": sagemaker, "vertex": vertex}


def probe(port: int, path: str, began: Event, is_over: Event, results: Connection) -> None:
    """Ask for health every INTERVAL_S until `is_over`. Send pairs: when a request fell due, and its milliseconds."""
    connection = http.client.HTTPConnection(HOST, port, timeout=LIMIT_S)
    times: list[tuple[float, float]] = []
    due = time.perf_counter()
    while not is_over.is_set():
        time.sleep(max(0.0, due - time.perf_counter()))
        start = time.perf_counter()
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        if response.status != 200:
            raise RuntimeError(f"{path} is answered with {response.status}")
        end = time.perf_counter()
        while start < end:
            times.append((start, (end - start) * 1e3))
            start += INTERVAL_S
        due = start
        began.set()
    results.send(times)


def ask(server: TextServer, text: Text, body: bytes | None) -> tuple[list[float], float]:
    """The milliseconds of the health requests while `body` was sent and answered, and the seconds that this took.

    None: while nothing was sent for IDLE_S.
    """
    port = server.ports[text.port]
    began, is_over = multiprocessing.Event(), multiprocessing.Event()
    receiver, sender = multiprocessing.Pipe(duplex=False)
    prober = multiprocessing.Process(target=probe, args=(port, HEALTH[text.port], began, is_over, sender), daemon=True)
    prober.start()
    began.wait(LIMIT_S)
    start = time.perf_counter()
    if body is None:
        time.sleep(IDLE_S)
    else:
        send(port, text, body)
    end = time.perf_counter()
    is_over.set()
    times: list[tuple[float, float]] = receiver.recv()
    prober.join(LIMIT_S)
    return [took_ms for due, took_ms in times if start <= due <= end], end - start


def send(port: int, text: Text, body: bytes) -> None:
    """Send `body` and receive the whole answer. RuntimeError if that has another status than the case's."""
    connection = http.client.HTTPConnection(HOST, port, timeout=LIMIT_S)
    with contextlib.closing(connection):
        connection.request("POST", text.path.format(text.model), body, {"Content-Type": text.media_type})
        response = connection.getresponse()
        answer = response.read()
    if response.status != text.status:
        raise RuntimeError(f"{text.title} is answered with {response.status}: {answer[:300]!r}")


def measure(results: Figures, text: Text, workers: str, repeats: int) -> None:
    body = text.make(text.megabytes)
    repository = build(BUILD / "models", text.model)
    took_ms: list[float] = []
    seconds: list[float] = []
    with TextServer(repository, BUILD / f"{text.key}-{workers}.log", workers) as server:
        idle_ms, _ = ask(server, text, None)
        for _ in range(repeats):
            times, took_s = ask(server, text, body)
            took_ms += times
            seconds.append(took_s)
    shape = f"{workers} HTTP workers" if workers != "0" else "one process"
    title = f"{text.title}, {len(body) / 1e6:.0f} MB; {shape}"
    p99_ms = float(np.percentile(took_ms, 99))
    results.note(title, "health of the idle server, p99", "ms", [float(np.percentile(idle_ms, 99))])
    results.note(title, "health", "ms", took_ms)
    results.note(title, "health, p99", "ms", [p99_ms])
    results.note(title, "the text, sent and answered", "s", seconds)
    results.at_most(title, "p99 of health, ms", GOAL_MS if text.status == 200 else REFUSED_MS, p99_ms)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench texts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    keys = tuple(text.key for text in TEXTS)
    parser.add_argument("--only", type=names_among(keys), default=list(keys), help=", ".join(keys))
    parser.add_argument("--workers", type=names_among(("0", "1", "2", "4")), default=["0", "2"], help="HTTP workers")
    parser.add_argument("--repeats", type=positive, default=3, help="of each text on each server")
    add_publication_arguments(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    BUILD.mkdir(parents=True, exist_ok=True)
    publication = Publication(options)
    results = Figures(shlex.join(["python", "-m", "bench", "texts", *arguments]), CONDITIONS)
    for workers in options.workers:
        for text in TEXTS:
            if text.key in options.only:
                print(f"{text.title}, {workers} workers", file=sys.stderr, flush=True)
                measure(results, text, workers, options.repeats)
    part = "" if len(options.only) == len(TEXTS) else "-" + "-".join(options.only)
    results.publish(publication, f"-texts{part}")
