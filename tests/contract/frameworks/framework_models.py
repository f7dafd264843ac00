"""A tiny model of each framework, written from a seed, with the framework's own answers.

Each takes rows of four FP32 values. `expected` computes the answers with the framework itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import xgboost
from openvino import opset13

from tests.needed import package
from tests.unit.core.backends.tensorflow.tensorflow_models import write_graph
from trident.core.inference.tensors import Array

WIDTH = 4
WEIGHTS = np.random.default_rng(7).normal(size=(WIDTH, 2)).astype(np.float32)
MODULE = """
import torch

class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(4, 2))

    def forward(self, x):
        return x @ self.weights
"""


@dataclass(frozen=True)
class FrameworkModel:
    """`inputs` and `output` are names; every input gets the same rows."""

    name: str
    extra: str
    inputs: tuple[str, ...]
    output: str
    width: int
    config: str
    write: Callable[[Path], object]
    expected: Callable[[Array], Array]
    in_process: bool = True
    instances: int = 2

    def write_to(self, repository: Path) -> None:
        version = repository / self.name / "1"
        version.mkdir(parents=True)
        self.write(version)
        tensors = "".join(f'input {{ name: "{name}" data_type: TYPE_FP32 dims: {WIDTH} }}\n' for name in self.inputs)
        tensors += f'output {{ name: "{self.output}" data_type: TYPE_FP32 dims: {self.width} }}\n'
        more = "max_batch_size: 16\ndynamic_batching { max_queue_delay_microseconds: 2000 }\n"
        more += f"instance_group {{ count: {self.instances} kind: KIND_CPU }}\n"
        (version.parent / "config.pbtxt").write_text(self.config + more + tensors)

    def v2_request(self, given: Array) -> dict[str, Any]:
        """A request of the v2 protocol with `given` for every input."""
        tensor = {"shape": list(given.shape), "datatype": "FP32", "data": given.ravel().tolist()}
        return {"inputs": [{"name": name, **tensor} for name in self.inputs]}


def _trees() -> FrameworkModel:
    table = np.random.default_rng(0).normal(size=(200, WIDTH)).astype(np.float32)
    trained = xgboost.train(
        {"objective": "multi:softprob", "num_class": 3, "max_depth": 3},
        xgboost.DMatrix(table, label=np.digitize(table[:, 0], [-0.5, 0.5])),
        3,
    )
    parameters = {"model_type": "xgboost_json", "is_classifier": "true", "predict_proba": "true"}
    return FrameworkModel(
        "trees",
        "trees",
        ("input__0",),
        "output__0",
        3,
        'backend: "fil"\n'
        + "".join(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}\n' for k, v in parameters.items()),
        lambda version: trained.save_model(version / "xgboost.json"),
        lambda rows: trained.predict(xgboost.DMatrix(rows)),
    )


def _openvino() -> FrameworkModel:
    given = opset13.parameter([-1, WIDTH], openvino.Type.f32, name="x")
    product = opset13.matmul(given, opset13.constant(WEIGHTS), False, False)
    product.output(0).tensor.names = {"y"}
    model = openvino.Model([opset13.result(product)], [given], "linear")
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return FrameworkModel(
        "vino",
        "openvino",
        ("x",),
        "y",
        2,
        'backend: "openvino"\n',
        lambda version: openvino.save_model(model, str(version / "model.xml"), compress_to_fp16=False),
        lambda rows: np.array(compiled.create_infer_request().infer([rows])[0]),
    )


def _tensorflow() -> FrameworkModel:
    platform = 'platform: "tensorflow_graphdef"\n'
    return FrameworkModel(
        "graph", "tensorflow", ("a", "b"), "s", WIDTH, platform, write_graph, lambda rows: rows + rows
    )


def _pytorch() -> list[FrameworkModel]:
    import torch

    linear = torch.nn.Linear(WIDTH, 2, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(WEIGHTS.T))
    example = torch.zeros(2, WIDTH)

    def expected(rows: Array) -> Array:
        with torch.no_grad():
            answer: Array = linear(torch.from_numpy(rows)).numpy()
        return answer

    def write_script(version: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.trace(linear, example).save(str(version / "model.pt"))

    def write_package(version: Path) -> None:
        rows: Any = torch.export.Dim("rows", min=1, max=16)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(linear, (example,), dynamic_shapes=({0: rows},))
            torch.export.save(program, version / "model.pt2")

    def write_module(version: Path) -> None:
        (version / "model.py").write_text(MODULE)
        torch.save({"weights": torch.from_numpy(WEIGHTS)}, version / "model.pt")

    return [
        FrameworkModel(
            "script", "torch", ("INPUT__0",), "OUTPUT__0", 2, 'platform: "pytorch_libtorch"\n', write_script, expected
        ),
        FrameworkModel(
            "package",
            "torch",
            ("ARGS[0]",),
            "RESULT",
            2,
            'platform: "torch_aoti"\n',
            write_package,
            expected,
            in_process=False,
            instances=1,  # each imports PyTorch for seconds, and those of the module show that there may be several
        ),
        FrameworkModel(
            "module",
            "torch",
            ("x",),
            "y",
            2,
            'backend: "pytorch"\nruntime: "model.py"\n',
            write_module,
            expected,
            in_process=False,
        ),
    ]


TORCH = ("script", "package", "module")
NAMES = ("trees", "vino", "graph", *TORCH)


@cache
def framework_models() -> dict[str, FrameworkModel]:
    """By name; those of PyTorch only where it is installed. The frameworks take seconds to import, and more to write
    the models."""
    models = [_trees(), _openvino(), _tensorflow(), *(_pytorch() if find_spec("torch") else [])]
    return {model.name: model for model in models}


def framework_model(name: str) -> FrameworkModel:
    """The model of this name. Without its framework the test is skipped."""
    if name in TORCH:
        package("torch")
    return framework_models()[name]
