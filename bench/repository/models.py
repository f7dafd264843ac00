"""The models for the benchmark of the repository, built into a folder that is not committed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.models.served import BATCHING, CONFIG, identity, single, write

WIDTH = 16
LAYER_WIDTH = 1024
LAYER_MEGABYTES = 4
MEGABYTE = 1 << 20


def build_big(folder: Path, *, megabytes: int, file_megabytes: int) -> Path:
    """Write a model of `megabytes` of random weights in external files of `file_megabytes`, or keep an existing one.

    It is a chain of matrix products. ONNX Runtime repacks their weights, so a session has to read every byte of them.
    """
    graph = folder / "1" / "model.onnx"
    if graph.exists():
        return graph
    config = CONFIG.format(batch=1, dims_in=LAYER_WIDTH, dims_out=LAYER_WIDTH, batching="")
    write(folder, config, None)
    layers = max(1, megabytes // LAYER_MEGABYTES)
    weights = _write_weights(graph.parent, layers, max(1, file_megabytes // LAYER_MEGABYTES))
    names = ["INPUT", *(f"layer{number}" for number in range(1, layers)), "OUTPUT"]
    nodes = [
        helper.make_node("MatMul", [names[number], weight.name], [names[number + 1]])
        for number, weight in enumerate(weights)
    ]
    model = single(nodes, [LAYER_WIDTH], [LAYER_WIDTH])
    model.graph.initializer.extend(weights)
    # Written last: its existence shows that the weights are complete.
    onnx.save(model, graph)
    return graph


def _write_weights(folder: Path, layers: int, layers_per_file: int) -> list[onnx.TensorProto]:
    """Write the weights of all layers. Returns the tensors that refer to them."""
    random = np.random.default_rng(0)
    tensors = []
    for first in range(0, layers, layers_per_file):
        path = folder / f"weights_{first // layers_per_file:03}.bin"
        with path.open("wb") as file:
            for layer in range(first, min(layers, first + layers_per_file)):
                tensors.append(_external_tensor(f"weight{layer}", path.name, file.tell()))
                weights = random.standard_normal((LAYER_WIDTH, LAYER_WIDTH), np.float32)
                file.write((weights / np.float32(LAYER_WIDTH**0.5)).tobytes())
    return tensors


def _external_tensor(name: str, file: str, offset: int) -> onnx.TensorProto:
    dims = [LAYER_WIDTH, LAYER_WIDTH]
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", file), ("offset", offset), ("length", LAYER_MEGABYTES * MEGABYTE)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def build_many(repository: Path, count: int) -> list[str]:
    """Write `count` small models that differ only in their names. Returns the names."""
    names = [f"model_{number:04}" for number in range(count)]
    config = CONFIG.format(batch=8, dims_in=WIDTH, dims_out=WIDTH, batching="")
    graph = identity([WIDTH]).SerializeToString()
    for name in names:
        write(repository / name, config, None)
        (repository / name / "1" / "model.onnx").write_bytes(graph)
    return names


def build_scaled(folder: Path) -> None:
    """Write the model under load, which multiplies its input by a factor."""
    write(folder, CONFIG.format(batch=64, dims_in=WIDTH, dims_out=WIDTH, batching=BATCHING), None)
    replace_scaled(folder, 1.0)


def replace_scaled(folder: Path, factor: float) -> None:
    """Replace the weights by a rename, as a careful upload does."""
    model = single([helper.make_node("Mul", ["INPUT", "factor"], ["OUTPUT"])], [WIDTH], [WIDTH])
    model.graph.initializer.append(numpy_helper.from_array(np.full(WIDTH, factor, np.float32), "factor"))
    aside = folder.parent.with_name(f"{folder.name}.part")
    onnx.save(model, aside)
    aside.replace(folder / "1" / "model.onnx")
