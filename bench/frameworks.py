"""The same two functions in each framework: a linear layer of 16 floats, and layers that take milliseconds."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import openvino
from openvino import opset13

from bench import wrk
from bench.machine import LoadWatch
from bench.results import names_among, number, positive, table
from bench.servers.server import Server, trident
from bench.target import TARGET_HEADER, Target
from bench.turns import HttpLoad, Ratio, Turns
from tests.project import ROOT
from trident.core.inference.tensors import Array

SMALL, LARGE = 16, 1024
LAYERS = 8
SEED = 5

Run = Callable[[Array], object]


@dataclass(frozen=True, slots=True)
class Model:
    """`write` writes a version directory with layers of these weights; `bare_loop` makes a step of the bare loop.

    `has_process`: it runs in a process of its own.
    """

    name: str
    input: str
    output: str
    config: str
    write: Callable[[Path, list[Array]], object]
    bare_loop: Callable[[Path], Run] | None = None
    has_process: bool = False


def weights_of(width: int) -> list[Array]:
    random = np.random.default_rng(SEED)
    layers = 1 if width == SMALL else LAYERS
    return [(random.normal(size=(width, width)) / width**0.5).astype(np.float32) for _ in range(layers)]


def _write_onnx(version: Path, weights: list[Array]) -> None:
    names = ["x", *(f"h{n}" for n in range(1, len(weights))), "y"]
    nodes = [onnx.helper.make_node("MatMul", [names[n], f"w{n}"], [names[n + 1]]) for n in range(len(weights))]
    width = len(weights[0])
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", width]) for name in ("x", "y")]
    initializers = [onnx.numpy_helper.from_array(weight, f"w{n}") for n, weight in enumerate(weights)]
    graph = onnx.helper.make_graph(nodes, "layers", ends[:1], ends[1:], initializers)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, version / "model.onnx")


def _onnx_library(version: Path) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(version / "model.onnx", options, providers=["CPUExecutionProvider"])
    return lambda rows: session.run(None, {"x": rows})


def _write_openvino(version: Path, weights: list[Array]) -> None:
    given = opset13.parameter([-1, len(weights[0])], openvino.Type.f32, name="x")
    value = given
    for weight in weights:
        value = opset13.matmul(value, opset13.constant(weight), False, False)
    value.output(0).tensor.names = {"y"}
    openvino.save_model(
        openvino.Model([opset13.result(value)], [given], "layers"), str(version / "model.xml"), compress_to_fp16=False
    )


def _openvino_library(version: Path) -> Run:
    properties = {"INFERENCE_NUM_THREADS": "1", "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(str(version / "model.xml"), "CPU", properties).create_infer_request()
    return lambda rows: request.infer([rows], share_inputs=True, share_outputs=True)


def _write_script(version: Path, weights: list[Array]) -> None:
    import torch

    modules = [torch.nn.Linear(len(weight), len(weight), bias=False) for weight in weights]
    with torch.no_grad():
        for module, weight in zip(modules, weights, strict=True):
            module.weight.copy_(torch.from_numpy(weight.T.copy()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        example = torch.zeros(1, len(weights[0]))
        torch.jit.trace(torch.nn.Sequential(*modules), example).save(str(version / "model.pt"))


def _script_library(version: Path) -> Run:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.load(str(version / "model.pt"))
    torch.set_num_threads(1)

    def run(rows: Array) -> object:
        with torch.inference_mode():
            return module(torch.from_numpy(rows)).numpy()

    return run


MODULE = """
import torch

class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.zeros(WIDTH, WIDTH) for _ in range(COUNT)])

    def forward(self, x):
        for weight in self.weights:
            x = x @ weight
        return x
"""


def _write_module(version: Path, weights: list[Array]) -> None:
    import torch

    text = MODULE.replace("WIDTH", str(len(weights[0]))).replace("COUNT", str(len(weights)))
    (version / "model.py").write_text(text)
    torch.save({f"weights.{n}": torch.from_numpy(weight) for n, weight in enumerate(weights)}, version / "model.pt")


def _write_package(version: Path, weights: list[Array]) -> None:
    import torch

    class Layers(torch.nn.Module):  # type: ignore[misc]  # its types are not read
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList([torch.from_numpy(weight) for weight in weights])

        def forward(self, x: object) -> object:
            for weight in self.weights:
                x = x @ weight
            return x

    rows = torch.export.Dim("rows", min=1, max=64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Layers(), (torch.zeros(2, len(weights[0])),), dynamic_shapes=({0: rows},))
        torch.export.save(program, version / "model.pt2")


# Runs where TensorFlow is installed, with the file of the weights and the folder to save to.
SAVE_WITH_TENSORFLOW = """
import sys
import numpy as np
import tensorflow as tf

weights = list(np.load(sys.argv[1]).values())

class Layers(tf.Module):
    def __init__(self):
        self.weights = [tf.Variable(weight) for weight in weights]

    @tf.function(input_signature=[tf.TensorSpec([None, len(weights[0])], tf.float32, name="x")])
    def __call__(self, x):
        for weight in self.weights:
            x = x @ weight
        return {"y": x}

tf.saved_model.save(Layers(), sys.argv[2])
"""


def _tensorflow(environment: Path | None) -> Model:
    """A SavedModel, run by the TensorFlow of a virtual environment, or else of this one."""
    python = sys.executable if environment is None else str(environment / "bin" / "python")

    def save(version: Path, weights: list[Array]) -> None:
        file = version / "weights.npz"
        np.savez(file, *weights)
        command = [python, "-c", SAVE_WITH_TENSORFLOW, str(file), str(version / "model.savedmodel")]
        subprocess.run(command, check=True, capture_output=True)
        file.unlink()

    config = 'platform: "tensorflow_savedmodel"'
    if environment is not None:
        config += f' parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}'
    return Model("tensorflow", "x", "y", config, save, has_process=True)


def _write_trees(version: Path, weights: list[Array]) -> None:
    import xgboost

    width = len(weights[0])
    table = np.random.default_rng(SEED).normal(size=(400, width)).astype(np.float32)
    rounds, depth = (10, 3) if width == SMALL else (500, 6)
    trained = xgboost.train({"max_depth": depth}, xgboost.DMatrix(table, label=table[:, 0] * table[:, 1]), rounds)
    trained.save_model(version / "xgboost.json")


def _trees_library(version: Path) -> Run:
    import treelite

    model = treelite.frontend.load_xgboost_model(version / "xgboost.json", format_choice="json")
    return lambda rows: treelite.gtil.predict(model, rows, nthread=1)


_TREE_PARAMETERS = (
    'backend: "fil" parameters { key: "model_type" value { string_value: "xgboost_json" } } '
    'parameters { key: "is_classifier" value { string_value: "false" } }'
)


def models(tensorflow: Path | None = None) -> list[Model]:
    """ONNX first; those of PyTorch and TensorFlow where they are installed. `tensorflow` is an environment with it."""
    found = [
        Model("onnx", "x", "y", 'backend: "onnxruntime"', _write_onnx, _onnx_library),
        Model("openvino", "x", "y", 'backend: "openvino"', _write_openvino, _openvino_library),
        Model("trees", "input__0", "output__0", _TREE_PARAMETERS, _write_trees, _trees_library),
    ]
    if find_spec("torch"):
        platform = 'platform: "pytorch_libtorch"'
        found += [
            Model("torchscript", "INPUT__0", "OUTPUT__0", platform, _write_script, _script_library),
            Model("module", "x", "y", 'backend: "pytorch" runtime: "model.py"', _write_module, has_process=True),
            Model("package", "ARGS[0]", "RESULT", 'platform: "torch_aoti"', _write_package, has_process=True),
        ]
    if tensorflow or find_spec("tensorflow"):
        found.append(_tensorflow(tensorflow))
    return found


def write(model: Model, repository: Path, width: int) -> Path:
    """The model with layers of `width` in a repository. Returns its version directory."""
    version = repository / f"{model.name}-{width}" / "1"
    if not (version.parent / "config.pbtxt").exists():  # it is written last
        version.mkdir(parents=True, exist_ok=True)
        model.write(version, weights_of(width))
        outputs = 1 if model.name == "trees" else width
        (version.parent / "config.pbtxt").write_text(
            f"{model.config}\nmax_batch_size: 64 dynamic_batching {{ }} instance_group {{ count: 1 kind: KIND_CPU }}\n"
            f'input {{ name: "{model.input}" data_type: TYPE_FP32 dims: {width} }}\n'
            f'output {{ name: "{model.output}" data_type: TYPE_FP32 dims: {outputs} }}\n'
        )
    return version


#         python -m bench frameworks                                 about 5 minutes
#         python -m bench frameworks --pairs 20 --only tiny
#         python -m bench frameworks --models onnx,trees --only computing,footprint
#         python -m bench frameworks --tensorflow ENVIRONMENT        with TensorFlow from a virtual environment
#
# A tiny model is a linear layer of 16 floats (for trees, ten of depth 3), asked over 16 connections by turns with the
# ONNX one on that server. A model that computes has eight layers of 1,024 (500 trees of depth 6) and gets 32 rows at a
# time over one connection; the bare loop of its library runs in a process of its own with one thread, and takes turns.
# The footprint is that of a server with one tiny model: the time from its start until it is ready, and the
# proportional set size of all its processes after one request.


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
