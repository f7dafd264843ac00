"""The same function in each framework beside ONNX Runtime, and what a server with one such model takes.

The model is a linear layer of 16 floats; for trees, ten of depth 3.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from bench.cases import Case
from bench.loads import infer
from bench.models.networks import graph_of
from bench.runner import Benchmark, Row, Run
from bench.servers.server import trident
from trident.core.inference.tensors import Array

WIDTH = 16
SEED = 5
ONNX = "onnx"
THREAD_GOAL, PROCESS_GOAL = 0.6, 0.45


@dataclass(frozen=True, slots=True)
class Model:
    """`write` writes a version directory with a layer of these weights. `has_process`: it runs in one of its own."""

    name: str
    input: str
    output: str
    config: str
    write: Callable[[Path, Array], object]
    outputs: int = WIDTH
    has_process: bool = False


def _write_onnx(version: Path, weight: Array) -> None:
    graph = graph_of([helper.make_node("MatMul", ["x", "w"], ["y"])], [WIDTH], [WIDTH], {"w": weight}, ("x", "y"))
    onnx.save(graph, version / "model.onnx")


def _write_openvino(version: Path, weight: Array) -> None:
    import openvino
    from openvino import opset13

    given = opset13.parameter([-1, WIDTH], openvino.Type.f32, name="x")
    value = opset13.matmul(given, opset13.constant(weight), False, False)
    value.output(0).tensor.names = {"y"}
    model = openvino.Model([opset13.result(value)], [given], "layer")
    openvino.save_model(model, str(version / "model.xml"), compress_to_fp16=False)


def _write_trees(version: Path, weight: Array) -> None:
    import xgboost

    table = np.random.default_rng(SEED).normal(size=(400, WIDTH)).astype(np.float32)
    trained = xgboost.train({"max_depth": 3}, xgboost.DMatrix(table, label=table[:, 0] * table[:, 1]), 10)
    trained.save_model(version / "xgboost.json")


def _write_script(version: Path, weight: Array) -> None:
    import torch

    layer = torch.nn.Linear(WIDTH, WIDTH, bias=False)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer.weight.copy_(torch.from_numpy(weight.T.copy()))
        torch.jit.trace(layer, torch.zeros(1, WIDTH)).save(str(version / "model.pt"))


MODULE = f"""
import torch

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros({WIDTH}, {WIDTH}))

    def forward(self, x):
        return x @ self.weight
"""


def _write_module(version: Path, weight: Array) -> None:
    import torch

    (version / "model.py").write_text(MODULE)
    torch.save({"weight": torch.from_numpy(weight)}, version / "model.pt")


def _write_package(version: Path, weight: Array) -> None:
    import torch

    class Layer(torch.nn.Module):  # type: ignore[misc]  # its types are not read
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.from_numpy(weight))

        def forward(self, x: object) -> object:
            return x @ self.weight

    rows = torch.export.Dim("rows", min=1, max=64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Layer(), (torch.zeros(2, WIDTH),), dynamic_shapes=({0: rows},))
        torch.export.save(program, version / "model.pt2")


# In a process of its own, which ends with TensorFlow's memory.
SAVE_WITH_TENSORFLOW = """
import sys
import numpy as np
import tensorflow as tf

class Layer(tf.Module):
    def __init__(self):
        self.weight = tf.Variable(np.load(sys.argv[1]))

    @tf.function(input_signature=[tf.TensorSpec([None, WIDTH], tf.float32, name="x")])
    def __call__(self, x):
        return {"y": x @ self.weight}

tf.saved_model.save(Layer(), sys.argv[2])
""".replace("WIDTH", str(WIDTH))


def _write_tensorflow(version: Path, weight: Array) -> None:
    file = version / "weight.npy"
    np.save(file, weight)
    command = [sys.executable, "-c", SAVE_WITH_TENSORFLOW, str(file), str(version / "model.savedmodel")]
    subprocess.run(command, check=True, capture_output=True)
    file.unlink()


_TREE_CONFIG = (
    'backend: "fil" parameters { key: "model_type" value { string_value: "xgboost_json" } } '
    'parameters { key: "is_classifier" value { string_value: "false" } }'
)
MODELS = [
    Model(ONNX, "x", "y", 'backend: "onnxruntime"', _write_onnx),
    Model("openvino", "x", "y", 'backend: "openvino"', _write_openvino),
    Model("trees", "input__0", "output__0", _TREE_CONFIG, _write_trees, outputs=1),
]
if find_spec("torch"):
    MODELS += [
        Model("torchscript", "INPUT__0", "OUTPUT__0", 'platform: "pytorch_libtorch"', _write_script),
        Model("module", "x", "y", 'backend: "pytorch" runtime: "model.py"', _write_module, has_process=True),
        Model("package", "ARGS[0]", "RESULT", 'platform: "torch_aoti"', _write_package, has_process=True),
    ]
if find_spec("tensorflow"):
    MODELS.append(
        Model("tensorflow", "x", "y", 'platform: "tensorflow_savedmodel"', _write_tensorflow, has_process=True)
    )


def write(model: Model, repository: Path) -> None:
    folder = repository / model.name
    if (folder / "config.pbtxt").exists():  # it is written last
        return
    (folder / "1").mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(SEED)
    model.write(folder / "1", (random.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32))
    (folder / "config.pbtxt").write_text(
        f"{model.config}\nmax_batch_size: 64 dynamic_batching {{ }} instance_group {{ count: 1 kind: KIND_CPU }}\n"
        f'input {{ name: "{model.input}" data_type: TYPE_FP32 dims: {WIDTH} }}\n'
        f'output {{ name: "{model.output}" data_type: TYPE_FP32 dims: {model.outputs} }}\n'
    )


def build(repository: Path) -> None:
    for model in MODELS:
        write(model, repository)


def _case(model: Model) -> Case:
    inputs = ((model.input, "FP32", (WIDTH,)),)
    return Case(f"framework-{model.name}", model.name, model.name, inputs, (model.output,), binary=True)


def footprint(run: Run) -> None:
    """The time until a server with one model is ready, and the memory of all its processes after some requests."""
    for model in MODELS:
        alone = run.folder / "alone" / model.name
        write(model, alone)
        ready, memory = [], []
        for _ in range(run.options.rounds):
            with trident(alone, run.folder / "alone.log") as server:
                ready.append(server.ready_seconds)
                with infer(_case(model), checked=False)(server) as load:
                    load.start(connections=1, seconds=1).communicate()
                memory.append(server.total_mb("Pss:"))
        run.results.note(model.name, "start to ready", "s", ready)
        run.results.note(model.name, "proportional (PSS), all processes", "MB", memory)


FRAMEWORKS = Benchmark(
    "A linear layer of 16 floats in each framework beside ONNX Runtime, and the footprint of a server with one.",
    build,
    {"trident": trident},
    [
        Row(
            "tiny",
            model.name,
            {each.name: ("trident", infer(_case(each), checked=False)) for each in (model, MODELS[0])},
            rate=PROCESS_GOAL if model.has_process else THREAD_GOAL,
        )
        for model in MODELS[1:]
    ],
    {"footprint": footprint},
    pairs=40,
    arguments={"rounds": (7, "footprint: starts of each server")},
)
