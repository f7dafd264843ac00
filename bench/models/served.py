"""The model repository of the benchmark, built into a folder that is not committed.

`simple` and `digits` are the models that ship with the project. `resnet` has 100 MB and is written only once.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from bench.models import digits_cnn, resnet

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "deploy" / "models"

CONFIG = """\
backend: "onnxruntime"
max_batch_size: {batch}
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ {dims_in} ] }} ]
output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ {dims_out} ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
{batching}
"""
BATCHING = "dynamic_batching { }"
WAITING = "dynamic_batching {{ max_queue_delay_microseconds: {} }}"
# As Triton served it: bench/results/*-beside-triton.md.
CNN_DELAY_US = 500
IMAGE_DIMS = "3, 224, 224"


def single(nodes: list[onnx.NodeProto], item_in: list[int | str], item_out: list[int | str]) -> onnx.ModelProto:
    """A graph with one FP32 input and one FP32 output, given the shapes without the batch dimension."""
    graph = helper.make_graph(
        nodes,
        "bench",
        [helper.make_tensor_value_info("INPUT", TensorProto.FLOAT, ["N", *item_in])],
        [helper.make_tensor_value_info("OUTPUT", TensorProto.FLOAT, ["N", *item_out])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def identity(item: list[int | str]) -> onnx.ModelProto:
    return single([helper.make_node("Identity", ["INPUT"], ["OUTPUT"])], item, item)


def mean() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Flatten", ["INPUT"], ["flat"], axis=1),
        helper.make_node("ReduceMean", ["flat"], ["OUTPUT"], axes=[1], keepdims=1),
    ]
    return single(nodes, list(resnet.IMAGE), [1])


def write(folder: Path, config: str, model: onnx.ModelProto | None) -> None:
    """Write one model; without `model`, keep the existing graph."""
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(config)
    if model is not None:
        onnx.save(model, folder / "1" / "model.onnx")


def build(repository: Path, *, queue_delay_us: int = 0) -> None:
    """Write the models of all cases except (e) under `repository`; the batches of the small ones wait for the delay."""
    for name in ("simple", "digits"):
        shutil.copytree(SHIPPED / name, repository / name, dirs_exist_ok=True)
        if queue_delay_us:
            path = repository / name / "config.pbtxt"
            path.write_text(path.read_text().replace(BATCHING, WAITING.format(queue_delay_us)))
    # Without a batcher, a request goes to the session unchanged: case (b) measures copies.
    config = CONFIG.format(batch=64, dims_in="-1", dims_out="-1", batching="")
    write(repository / "identity", config, identity(["D"]))
    config = CONFIG.format(batch=8, dims_in=IMAGE_DIMS, dims_out=IMAGE_DIMS, batching="")
    write(repository / "image_echo", config, identity(list(resnet.IMAGE)))
    config = CONFIG.format(batch=8, dims_in=IMAGE_DIMS, dims_out="1", batching="")
    write(repository / "image_mean", config, mean())
    image = ", ".join(map(str, digits_cnn.IMAGE))
    config = CONFIG.format(batch=32, dims_in=image, dims_out=digits_cnn.CLASSES, batching=WAITING.format(CNN_DELAY_US))
    write(repository / "digits_cnn", config, digits_cnn.to_onnx())


def build_resnet(repository: Path, *, batch: int) -> Path:
    """Write the model of case (e), whose executions take `batch` items at most. Returns the path of its graph."""
    folder = repository / "resnet"
    graph = folder / "1" / "model.onnx"
    config = CONFIG.format(batch=batch, dims_in=IMAGE_DIMS, dims_out=resnet.CLASSES, batching=BATCHING)
    write(folder, config, None if graph.exists() else resnet.to_onnx())
    return graph
