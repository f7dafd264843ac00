"""The comparisons of Vertex AI's container."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench import wrk
from bench.cases import CASES, SEED, Case
from bench.models.served import SHIPPED
from bench.results import Figures, Publication, add_publication_arguments, names_among, positive
from bench.servers.server import Server
from bench.turns import HttpLoad, Turn, Turns
from tests.contract.servers.ports import HOST
from tests.project import ROOT

_TRIDENT = str(Path(sys.executable).with_name("trident"))
_BINARY_PREFIX = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
_PREDICT = "/predict"
TABULAR = "tabular"
TABULAR_FEATURES = 30
_ROWS = 1000
_CONNECTIONS = 4
_FLASK_SECONDS = 3
_FLASK_ROUNDS = 5


class BesidePlain(Server):
    """Vertex AI's port beside plain HTTP's: two applications, one process, one engine."""

    def __init__(self, repository: Path, model: str, log: Path) -> None:
        command = [
            _TRIDENT,
            "serve",
            "--platform=plain",
            f"--model-repository={repository}",
            f"--http-address={HOST}",
            "--http-port={port}",
            "--allow-grpc=false",
            "--allow-metrics=false",
            "--allow-vertex-ai=true",
            "--vertex-ai-port={spare_port}",
            f"--vertex-ai-default-model={model}",
        ]
        super().__init__("trident", command, log, {"AIP_PREDICT_ROUTE": _PREDICT, "AIP_HEALTH_ROUTE": "/health"})

    @property
    def predict_url(self) -> str:
        return f"http://{HOST}:{self.spare_port}{_PREDICT}"


def measure_predict(results: Figures, build: Path, rounds: int, seconds: float) -> None:
    repository = build_tabular(build / "models")
    rows = np.random.default_rng(SEED).random((_ROWS, TABULAR_FEATURES)).round(4)
    kind = {"Content-Type": "application/json"}
    instances = json.dumps({"instances": rows.tolist()}).encode()
    tensor = {"name": "IN", "shape": [_ROWS, TABULAR_FEATURES], "datatype": "FP32", "data": rows.tolist()}
    v2 = json.dumps({"inputs": [tensor]}).encode()
    predict = wrk.write_script(build / "predict.lua", instances, kind)
    infer = wrk.write_script(build / "infer.lua", v2, kind)
    title = f"{_ROWS:,} instances of {TABULAR_FEATURES} features, {_CONNECTIONS} connections"
    with BesidePlain(repository, TABULAR, build / "tabular.log") as server:
        _check(server, instances, rows)
        loads = {
            "predict": HttpLoad(server, TABULAR, server.predict_url, predict),
            "v2 JSON": HttpLoad(server, TABULAR, server.url(f"/v2/models/{TABULAR}/infer"), infer),
        }
        with Turns(loads, connections=_CONNECTIONS, seconds=seconds) as turns:
            pairs = [turns.round(number) for number in range(rounds)]
        _note(results, title, "predict", "v2 JSON", pairs, of="instance")
        slower = statistics.median(
            pair["v2 JSON"].requests_per_second / pair["predict"].requests_per_second for pair in pairs
        )
        results.at_most(title, "time over that of one v2 JSON tensor", 1.5, slower)
        with _flask(repository, build / "flask.log") as flask:
            for path, what in (("/predict", "a run each"), ("/predict_together", "one run")):
                ratios = [_beside(server.predict_url, flask.url(path), predict) for _ in range(_FLASK_ROUNDS)]
                results.note(title, f"requests/s over Flask's with {what}", "ratio", ratios)
                if path == "/predict":
                    results.at_least(title, "requests/s over a Flask handler's", 10, statistics.median(ratios))


def _beside(ours: str, theirs: str, script: Path) -> float:
    rates = []
    for url in (ours, theirs):
        load = wrk.run(url, script, connections=_CONNECTIONS, seconds=_FLASK_SECONDS)
        if load.errors:
            raise RuntimeError(f"{url} answered {load.errors} requests wrongly")
        rates.append(load.requests / load.seconds)
    return rates[0] / rates[1]


def measure_raw(results: Figures, build: Path, rounds: int, seconds: float) -> None:
    repository = build / "one"
    shutil.rmtree(repository, ignore_errors=True)
    shutil.copytree(SHIPPED / "simple", repository / "simple")
    case = next(case for case in CASES if case.key == "a-binary")
    raw = wrk.write_script(build / "raw.lua", *_raw(case))
    infer = wrk.write_script(build / "binary.lua", *case.body())
    with BesidePlain(repository, "simple", build / "one.log") as server:
        for connections in (16, 64):
            loads = {
                "rawPredict": HttpLoad(server, case.model, server.predict_url, raw),
                "v2 infer": HttpLoad(server, case.model, server.url(case.path), infer),
            }
            with Turns(loads, connections=connections, seconds=seconds) as turns:
                pairs = [turns.round(number) for number in range(rounds)]
            title = f"rawPredict, binary, {connections} connections"
            _note(results, title, "rawPredict", "v2 infer", pairs)
            results.at_most(title, "errors", 0, turns.errors)
            over = statistics.median(
                pair["rawPredict"].requests_per_second / pair["v2 infer"].requests_per_second for pair in pairs
            )
            results.at_least(title, "requests/s over those of v2 infer", 0.95, over)


def _note(
    results: Figures, title: str, ours: str, theirs: str, pairs: list[dict[str, Turn]], of: str = "request"
) -> None:
    for name in (ours, theirs):
        results.note(title, f"{of}s/s; {name}", f"{of}s/s", [pair[name].requests_per_second for pair in pairs])
        results.note(title, f"CPU per {of}; {name}", "µs", [pair[name].cpu_us for pair in pairs])


def _raw(case: Case) -> tuple[bytes, dict[str, str]]:
    """The case's body with Vertex AI's header."""
    body, headers = case.body()
    return body, {"Content-Type": f"{_BINARY_PREFIX}{headers['Inference-Header-Content-Length']}"}


def _check(server: BesidePlain, instances: bytes, rows: np.ndarray) -> None:
    """Check that the predictions are those of the rows, in their order. RuntimeError if they are not."""
    import urllib.request

    request = urllib.request.Request(server.predict_url, instances, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        predictions = np.array(json.load(answer)["predictions"])
    if not np.allclose(predictions[:, 0], rows.sum(axis=1), rtol=1e-4):
        raise RuntimeError("the predictions are wrong")


def _flask(repository: Path, log: Path) -> Server:
    command = [sys.executable, "-m", "gunicorn", "--worker-class=gevent", f"--bind={HOST}:{{port}}"]
    command.append("bench.servers.flask_predict:app")
    return Server("flask", command, log, {"MODELS": str(repository)})


def build_tabular(repository: Path) -> Path:
    """Write a model that adds up the features of a row."""
    folder = repository / TABULAR / "1"
    folder.mkdir(parents=True, exist_ok=True)
    weights = numpy_helper.from_array(np.ones((TABULAR_FEATURES, 1), np.float32), "W")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["IN", "W"], ["OUT"])],
        TABULAR,
        [helper.make_tensor_value_info("IN", TensorProto.FLOAT, ["N", TABULAR_FEATURES])],
        [helper.make_tensor_value_info("OUT", TensorProto.FLOAT, ["N", 1])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "model.onnx")
    (folder.parent / "config.pbtxt").write_text('backend: "onnxruntime"\nmax_batch_size: 1024\ndynamic_batching {}\n')
    return repository


#         python -m bench vertex                      all of it, about 7 minutes
#         python -m bench vertex --only predict --rounds 20
#         make bench BENCH_ARGS='vertex --only raw'
#
# The cases:
#
#         predict   1,000 instances of 30 features beside the same numbers as one v2 JSON tensor, and beside a Flask
#     handler
#         raw       rawPredict with binary tensors beside plain v2 infer: one process, one model, by turns


COMPARISONS = {"predict": measure_predict, "raw": measure_raw}
BUILD = ROOT / "build" / "bench" / "vertex"
CONDITIONS = "Servers and wrk share the cores."


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench vertex", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", type=names_among(tuple(COMPARISONS)), default=list(COMPARISONS), help=", ".join(COMPARISONS)
    )
    parser.add_argument(
        "--rounds", type=positive, default=400, help="pairs of turns; the median of their ratios counts"
    )
    parser.add_argument("--turn", type=float, default=0.1, help="seconds of each turn")
    add_publication_arguments(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    wrk.require_or_exit()
    BUILD.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["python", "-m", "bench", "vertex", *arguments])
    publication = Publication(options)
    results = Figures(command, CONDITIONS)
    for name in options.only:
        print(f"{name}: begins", file=sys.stderr, flush=True)
        COMPARISONS[name](results, BUILD, options.rounds, options.turn)
    part = "" if set(options.only) == set(COMPARISONS) else "-" + "-".join(options.only)
    results.publish(publication, f"-vertex{part}")
