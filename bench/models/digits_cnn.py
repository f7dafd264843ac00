"""A small convolutional network for digits of 28x28 pixels, with random weights: about 10^6 multiplications an image.

The layers are those of the model with which Triton was measured: bench/results/*-beside-triton.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

IMAGE = (1, 28, 28)
CLASSES = 10
CHANNELS = (16, 32)
SEED = 5


def to_onnx(channels: tuple[int, int] = CHANNELS) -> onnx.ModelProto:
    """INPUT is FP32[N, 1, 28, 28], OUTPUT FP32[N, 10]: the probabilities of the digits. `channels`: of the layers."""
    first, second = channels
    random = np.random.default_rng(SEED)
    shapes = {
        "w1": (first, 1, 3, 3),
        "b1": (first,),
        "w2": (second, first, 3, 3),
        "b2": (second,),
        "w3": (CLASSES, 49 * second),
        "b3": (CLASSES,),
    }
    weights = {name: (random.standard_normal(shape) * 0.1).astype(np.float32) for name, shape in shapes.items()}
    same: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    half: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        helper.make_node("Conv", ["INPUT", "w1", "b1"], ["c1"], **same),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], **half),
        helper.make_node("Conv", ["p1", "w2", "b2"], ["c2"], **same),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("MaxPool", ["r2"], ["p2"], **half),
        helper.make_node("Flatten", ["p2"], ["flat"], axis=1),
        helper.make_node("Gemm", ["flat", "w3", "b3"], ["logits"], transB=1),
        helper.make_node("Softmax", ["logits"], ["OUTPUT"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits_cnn",
        [helper.make_tensor_value_info("INPUT", TensorProto.FLOAT, ["N", *IMAGE])],
        [helper.make_tensor_value_info("OUTPUT", TensorProto.FLOAT, ["N", CLASSES])],
        [numpy_helper.from_array(weight, name) for name, weight in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
