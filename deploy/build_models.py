"""Builds the ONNX models that ship; their configurations are files of their own.

    python deploy/build_models.py simple            deploy/models/simple: sums and differences of 16 integers
    python deploy/build_models.py running_mean      deploy/examples/running_mean: the mean of a sequence's values
    python deploy/build_models.py digits            trains deploy/models/digits, and writes a sample request a digit

`digits` needs the `train` extra, the others `onnx`. The same seed and versions give the same weights.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

DEPLOY = Path(__file__).resolve().parent
WHITE = 16.0
SEED = 7
REQUIRED_ACCURACY = 0.97


def save(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    constants: dict[str, npt.NDArray[Any]],
) -> None:
    """Write the graph of a model, whose inputs and outputs are (name, type, shape)."""
    given, made = ([helper.make_tensor_value_info(*each) for each in side] for side in (inputs, outputs))
    graph = helper.make_graph(
        nodes, folder.name, given, made, [numpy_helper.from_array(array, name) for name, array in constants.items()]
    )
    # Every ONNX Runtime since 1.13 reads IR 8 and opset 17.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, folder / "1" / "model.onnx")
    print(f"wrote {folder}")


def build_simple() -> None:
    names = ["INPUT0", "INPUT1"], ["OUTPUT0", "OUTPUT1"]
    nodes = [helper.make_node("Add", names[0], names[1][:1]), helper.make_node("Sub", names[0], names[1][1:])]
    inputs, outputs = ([(name, TensorProto.INT32, ["N", 16]) for name in side] for side in names)
    save(DEPLOY / "models" / "simple", nodes, inputs, outputs, {})


def build_running_mean() -> None:
    """The total and the count are states: the graph reads what it wrote in the request before."""
    nodes = [
        helper.make_node("Add", ["total_in", "value"], ["total_out"]),
        helper.make_node("Add", ["count_in", "one"], ["count_out"]),
        helper.make_node("Div", ["total_out", "count_out"], ["mean"]),
    ]
    names = ["value", "total_in", "count_in"], ["mean", "total_out", "count_out"]
    inputs, outputs = ([(name, TensorProto.FLOAT, ["N", 1]) for name in side] for side in names)
    save(DEPLOY / "examples" / "running_mean", nodes, inputs, outputs, {"one": np.ones(1, np.float32)})


def build_digits() -> None:
    """Train with scikit-learn's handwritten digits: 8x8 pixels, grey values from 0 to 16, 1,797 of them.

    A quarter is held out; the network (64-96-48-10, ReLU) sees the rest, each picture also moved by one pixel in four
    directions, because people do not write exactly in the middle. The graph takes the raw grey values, shape
    [N,1,8,8], and returns probabilities, shape [N,10]: it includes scaling and softmax, so no client can forget them.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier

    digits = load_digits()
    pictures, classes = digits.images.astype(np.float32), digits.target.astype(np.int64)
    seen, held_out, seen_classes, held_out_classes = train_test_split(
        pictures, classes, test_size=0.25, random_state=SEED, stratify=classes
    )
    network = MLPClassifier((96, 48), alpha=1e-3, batch_size=128, max_iter=400, random_state=SEED)
    padded = np.pad(seen, ((0, 0), (1, 1), (1, 1)))
    offsets = ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
    moved = np.concatenate([padded[:, row : row + 8, column : column + 8] for row, column in offsets])
    network.fit(moved.reshape(-1, 64) / WHITE, np.tile(seen_classes, len(offsets)))
    read = network.predict(held_out.reshape(-1, 64) / WHITE)
    accuracy = float((read == held_out_classes).mean())
    print(f"accuracy on {len(held_out)} held-out pictures: {accuracy:.4f}")
    if accuracy < REQUIRED_ACCURACY:
        raise SystemExit(f"less than {REQUIRED_ACCURACY}: nothing written")

    constants: dict[str, npt.NDArray[Any]] = {"scale": np.array(1.0 / WHITE, np.float32)}
    nodes = [
        helper.make_node("Mul", ["INPUT", "scale"], ["scaled"]),
        helper.make_node("Flatten", ["scaled"], ["layer0"], axis=1),
    ]
    for number, (weights, bias) in enumerate(zip(network.coefs_, network.intercepts_, strict=True), start=1):
        constants[f"weights{number}"] = weights.astype(np.float32)
        constants[f"bias{number}"] = bias.astype(np.float32)
        inputs = [f"layer{number - 1}", f"weights{number}", f"bias{number}"]
        nodes += [
            helper.make_node("Gemm", inputs, [f"sum{number}"]),
            helper.make_node("Softmax", [f"sum{number}"], ["OUTPUT"], axis=1)
            if number == len(network.coefs_)
            else helper.make_node("Relu", [f"sum{number}"], [f"layer{number}"]),
        ]
    given, found = ("INPUT", TensorProto.FLOAT, ["N", 1, 8, 8]), ("OUTPUT", TensorProto.FLOAT, ["N", 10])
    save(DEPLOY / "models" / "digits", nodes, [given], [found], constants)
    for digit in range(10):
        # The samples are for trying out a server, so the network must classify each correctly.
        picture = held_out[(held_out_classes == digit) & (read == digit)][0].astype(int).ravel().tolist()
        tensor = {"name": "INPUT", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": picture}
        request = {"inputs": [tensor], "outputs": [{"name": "OUTPUT", "parameters": {"classification": 3}}]}
        (DEPLOY / "digits" / f"{digit}.json").write_text(json.dumps(request, separators=(",", ":")) + "\n")


BUILDS = {"simple": build_simple, "running_mean": build_running_mean, "digits": build_digits}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in BUILDS:
        raise SystemExit(__doc__)
    BUILDS[sys.argv[1]]()
