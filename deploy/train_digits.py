"""Trains the digit classifier of `deploy/models/digits` and writes the model, its labels and ten sample requests.

    python deploy/train_digits.py

Needs the `train` extra. The pictures are scikit-learn's handwritten digits: 8x8 pixels, grey values from 0 to 16, 1,797
of them. A quarter is held out; the network (64-96-48-10, ReLU) sees the rest, each picture also moved by one pixel in
four directions, because people do not write exactly in the middle. The ONNX graph takes the raw grey values, shape
[N,1,8,8], and returns probabilities, shape [N,10]: it includes scaling and softmax, so no client can forget them. The
same seed and versions give the same weights.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

DEPLOY = Path(__file__).resolve().parent
MODEL = DEPLOY / "models" / "digits"
REQUESTS = DEPLOY / "digits"
LABELS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
WHITE = 16.0
SEED = 7
REQUIRED_ACCURACY = 0.97

Pictures = npt.NDArray[np.float32]
Classes = npt.NDArray[np.int64]

CONFIG = """\
name: "digits"
backend: "onnxruntime"
max_batch_size: 64
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 1, 8, 8 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 10 ] label_filename: "labels.txt" } ]
dynamic_batching { }
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


def moved(pictures: Pictures, classes: Classes) -> tuple[Pictures, Classes]:
    """The pictures (shape [N,8,8]) and copies moved by one pixel up, down, left and right."""
    padded = np.pad(pictures, ((0, 0), (1, 1), (1, 1)))
    offsets = ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
    shifted = [padded[:, row : row + 8, column : column + 8] for row, column in offsets]
    return np.concatenate(shifted), np.tile(classes, len(offsets))


def train(pictures: Pictures, classes: Classes) -> MLPClassifier:
    network = MLPClassifier((96, 48), alpha=1e-3, batch_size=128, max_iter=400, random_state=SEED)
    inputs, targets = moved(pictures, classes)
    network.fit(inputs.reshape(-1, 64) / WHITE, targets)
    return network


def to_onnx(network: MLPClassifier) -> onnx.ModelProto:
    """The network as ONNX: INPUT FP32 [N,1,8,8] grey values, OUTPUT FP32 [N,10] probabilities."""
    constants = [numpy_helper.from_array(np.array(1.0 / WHITE, np.float32), "scale")]
    nodes = [
        helper.make_node("Mul", ["INPUT", "scale"], ["scaled"]),
        helper.make_node("Flatten", ["scaled"], ["layer0"], axis=1),
    ]
    last = len(network.coefs_)
    for number, (weights, bias) in enumerate(zip(network.coefs_, network.intercepts_, strict=True), start=1):
        constants += [
            numpy_helper.from_array(weights.astype(np.float32), f"weights{number}"),
            numpy_helper.from_array(bias.astype(np.float32), f"bias{number}"),
        ]
        inputs = [f"layer{number - 1}", f"weights{number}", f"bias{number}"]
        nodes += [
            helper.make_node("Gemm", inputs, [f"sum{number}"]),
            helper.make_node("Softmax", [f"sum{number}"], ["OUTPUT"], axis=1)
            if number == last
            else helper.make_node("Relu", [f"sum{number}"], [f"layer{number}"]),
        ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("INPUT", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("OUTPUT", TensorProto.FLOAT, ["N", 10])],
        constants,
    )
    # Every ONNX Runtime since 1.13 reads IR 8 and opset 17.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def request_for(picture: Pictures) -> dict[str, object]:
    """A v2 request for the three best classes of one picture (shape [8,8])."""
    return {
        "inputs": [
            {"name": "INPUT", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": picture.astype(int).ravel().tolist()}
        ],
        "outputs": [{"name": "OUTPUT", "parameters": {"classification": 3}}],
    }


def main() -> None:
    digits = load_digits()
    pictures, classes = digits.images.astype(np.float32), digits.target.astype(np.int64)
    seen, held_out, seen_classes, held_out_classes = train_test_split(
        pictures, classes, test_size=0.25, random_state=SEED, stratify=classes
    )
    network = train(seen, seen_classes)
    read = network.predict(held_out.reshape(-1, 64) / WHITE)
    accuracy = float((read == held_out_classes).mean())
    print(f"accuracy on {len(held_out)} held-out pictures: {accuracy:.4f}")
    if accuracy < REQUIRED_ACCURACY:
        raise SystemExit(f"less than {REQUIRED_ACCURACY}: nothing written")

    (MODEL / "1").mkdir(parents=True, exist_ok=True)
    onnx.save(to_onnx(network), MODEL / "1" / "model.onnx")
    (MODEL / "config.pbtxt").write_text(CONFIG)
    (MODEL / "labels.txt").write_text("\n".join(LABELS) + "\n")
    REQUESTS.mkdir(exist_ok=True)
    for digit in range(10):
        # The samples are for trying out a server, so the network must classify each correctly.
        picture = held_out[(held_out_classes == digit) & (read == digit)][0]
        (REQUESTS / f"{digit}.json").write_text(json.dumps(request_for(picture), separators=(",", ":")) + "\n")
    print(f"wrote {MODEL} and {REQUESTS}")


if __name__ == "__main__":
    main()
