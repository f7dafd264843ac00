"""A compute-bound graph: the layers of a 50-layer bottleneck ResNet (version 1.5), with random weights.

Source of the layer sizes: He et al., "Deep Residual Learning for Image Recognition", table 1; the stride is on the 3x3
convolution. About 4.1e9 multiply-adds an image.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

IMAGE = (3, 224, 224)
CLASSES = 1000
# Bottlenecks in the stage, channels inside them, stride of the first one. They put out four times the channels.
STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
EXPANSION = 4
EPSILON = 1e-5


class GraphBuilder:
    """Collects nodes and weights. Weights are scaled so that activations neither vanish nor overflow."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, array: npt.NDArray[Any]) -> str:
        self.weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def convolution(self, name: str, source: str, channels: tuple[int, int], kernel: int, stride: int) -> str:
        """Add convolution and batch normalisation of `channels` (in, out). Returns the name of the result."""
        incoming, outgoing = channels
        scale = np.sqrt(2.0 / (incoming * kernel * kernel))
        kernels = self.random.standard_normal((outgoing, incoming, kernel, kernel)) * scale
        pad = kernel // 2
        convolved = self.add(
            "Conv",
            [source, self.weight(f"{name}.weight", kernels)],
            f"{name}.conv",
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[pad, pad, pad, pad],
        )
        ones, small = np.ones(outgoing), self.random.standard_normal(outgoing) * 0.05
        parameters = [("gamma", ones), ("beta", small), ("mean", small), ("variance", ones)]
        names = [self.weight(f"{name}.{key}", value) for key, value in parameters]
        return self.add("BatchNormalization", [convolved, *names], f"{name}.norm", epsilon=EPSILON)

    def bottleneck(self, name: str, source: str, channels: tuple[int, int], stride: int) -> str:
        """Add three convolutions with a bypass. `channels` are (in, inside)."""
        incoming, inside = channels
        outgoing = inside * EXPANSION
        first = self.convolution(f"{name}.1", source, (incoming, inside), 1, 1)
        second = self.convolution(f"{name}.2", self.add("Relu", [first], f"{name}.1.relu"), (inside, inside), 3, stride)
        third = self.convolution(f"{name}.3", self.add("Relu", [second], f"{name}.2.relu"), (inside, outgoing), 1, 1)
        around = source
        if stride != 1 or incoming != outgoing:
            around = self.convolution(f"{name}.around", source, (incoming, outgoing), 1, stride)
        # Scaled, because the sums of sixteen random blocks would grow without bound.
        total = self.add("Add", [third, around], f"{name}.sum")
        scaled = self.add("Mul", [total, "scale"], f"{name}.scaled")
        return self.add("Relu", [scaled], f"{name}.relu")


def to_onnx(seed: int = 50) -> onnx.ModelProto:
    """INPUT FP32 [N,3,224,224] -> OUTPUT FP32 [N,1000] probabilities."""
    builder = GraphBuilder(seed)
    builder.weight("scale", np.array(0.7))
    stem = builder.add("Relu", [builder.convolution("stem", "INPUT", (3, 64), 7, 2)], "stem.relu")
    layer = builder.add("MaxPool", [stem], "stem.pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    incoming = 64
    for number, (blocks, inside, stride) in enumerate(STAGES, start=1):
        for block in range(blocks):
            name = f"stage{number}.block{block + 1}"
            layer = builder.bottleneck(name, layer, (incoming, inside), stride if block == 0 else 1)
            incoming = inside * EXPANSION
    pooled = builder.add("GlobalAveragePool", [layer], "pool")
    flat = builder.add("Flatten", [pooled], "flat", axis=1)
    weights = builder.weight("head.weight", builder.random.standard_normal((incoming, CLASSES)) * incoming**-0.5)
    logits = builder.add("Gemm", [flat, weights, builder.weight("head.bias", np.zeros(CLASSES))], "logits")
    builder.add("Softmax", [logits], "OUTPUT", axis=1)
    graph = helper.make_graph(
        builder.nodes,
        "resnet",
        [helper.make_tensor_value_info("INPUT", TensorProto.FLOAT, ["N", *IMAGE])],
        [helper.make_tensor_value_info("OUTPUT", TensorProto.FLOAT, ["N", CLASSES])],
        builder.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
