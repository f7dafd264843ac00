"""Graphs with random weights: small ones, and two that are bound by their computation, like ResNet-50 and BERT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.cases import DIGIT, IMAGE

CLASSES = 10
CNN_CHANNELS = (16, 32)
RESNET_CLASSES = 1000
BERT_WORDS, BERT_TOKENS = 30_522, 128
# Bottlenecks in the stage, channels inside them, stride of the first one. They put out four times the channels.
STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
EXPANSION = 4

Dims = list[int | str]


def graph_of(
    nodes: list[onnx.NodeProto],
    dims_in: Dims,
    dims_out: Dims,
    weights: dict[str, npt.NDArray[Any]] | None = None,
    names: tuple[str, str] = ("INPUT", "OUTPUT"),
) -> onnx.ModelProto:
    """A model with one FP32 input and one FP32 output, given the shapes without the batch dimension."""
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *dims])
        for name, dims in zip(names, (dims_in, dims_out), strict=True)
    ]
    initializers = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "bench", ends[:1], ends[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def identity(item: Dims) -> onnx.ModelProto:
    return graph_of([helper.make_node("Identity", ["INPUT"], ["OUTPUT"])], item, item)


def mean() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Flatten", ["INPUT"], ["flat"], axis=1),
        helper.make_node("ReduceMean", ["flat"], ["OUTPUT"], axes=[1], keepdims=1),
    ]
    return graph_of(nodes, [*IMAGE], [1])


def digits_cnn(channels: tuple[int, int] = CNN_CHANNELS) -> onnx.ModelProto:
    """28x28 pixels to the probabilities of ten digits, about 10^6 multiplications an image.

    The layers are those of the model with which Triton was measured: bench/results/*-beside-triton.md.
    """
    first, second = channels
    random = np.random.default_rng(5)
    shapes = {
        "w1": (first, 1, 3, 3),
        "b1": (first,),
        "w2": (second, first, 3, 3),
        "b2": (second,),
        "w3": (CLASSES, 49 * second),
        "b3": (CLASSES,),
    }
    weights = {name: random.standard_normal(shape) * 0.1 for name, shape in shapes.items()}
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
    return graph_of(nodes, [*DIGIT], [CLASSES], weights)


class _Resnet:
    """Collects nodes and weights. Weights are scaled so that activations neither vanish nor overflow."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(50)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, npt.NDArray[Any]] = {"scale": np.array(0.7)}

    def add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def convolution(self, name: str, source: str, channels: tuple[int, int], kernel: int, stride: int) -> str:
        """Add convolution and batch normalisation of `channels` (in, out). Returns the name of the result."""
        incoming, outgoing = channels
        scale = np.sqrt(2.0 / (incoming * kernel * kernel))
        self.weights[f"{name}.weight"] = self.random.standard_normal((outgoing, incoming, kernel, kernel)) * scale
        convolved = self.add(
            "Conv",
            [source, f"{name}.weight"],
            f"{name}.conv",
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
        )
        small = self.random.standard_normal(outgoing) * 0.05
        parameters = {"gamma": np.ones(outgoing), "beta": small, "mean": small, "variance": np.ones(outgoing)}
        self.weights |= {f"{name}.{key}": value for key, value in parameters.items()}
        inputs = [convolved, *(f"{name}.{key}" for key in parameters)]
        return self.add("BatchNormalization", inputs, f"{name}.norm", epsilon=1e-5)

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
        return self.add("Relu", [self.add("Mul", [total, "scale"], f"{name}.scaled")], f"{name}.relu")


def resnet(stages: Sequence[tuple[int, int, int]] = STAGES, image: Sequence[int] = IMAGE) -> onnx.ModelProto:
    """By default the layers of a 50-layer bottleneck ResNet (version 1.5), about 4.1e9 multiply-adds an image.

    Source of the layer sizes: He et al., "Deep Residual Learning for Image Recognition", table 1; the stride is on the
    3x3 convolution.
    """
    made = _Resnet()
    stem = made.add("Relu", [made.convolution("stem", "INPUT", (3, 64), 7, 2)], "stem.relu")
    layer = made.add("MaxPool", [stem], "stem.pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    incoming = 64
    for number, (blocks, inside, stride) in enumerate(stages, start=1):
        for block in range(blocks):
            name = f"stage{number}.block{block + 1}"
            layer = made.bottleneck(name, layer, (incoming, inside), stride if block == 0 else 1)
            incoming = inside * EXPANSION
    flat = made.add("Flatten", [made.add("GlobalAveragePool", [layer], "pool")], "flat", axis=1)
    made.weights["head.weight"] = made.random.standard_normal((incoming, RESNET_CLASSES)) * incoming**-0.5
    made.weights["head.bias"] = np.zeros(RESNET_CLASSES)
    made.add("Softmax", [made.add("Gemm", [flat, "head.weight", "head.bias"], "logits")], "OUTPUT", axis=1)
    return graph_of(made.nodes, [*image], [RESNET_CLASSES], made.weights)


def trees(count: int = 100, depth: int = 6, features: int = 30) -> onnx.ModelProto:
    """INPUT FP32 [N, features] -> OUTPUT FP32 [N, 1]: the sum of full binary trees, as of a boosted regressor."""
    random = np.random.default_rng(0)
    inner, size = 2**depth - 1, 2 ** (depth + 1) - 1
    nodes = np.arange(size)
    is_leaf = nodes >= inner
    ids = {"treeids": np.repeat(np.arange(count), size), "nodeids": np.tile(nodes, count)}
    attributes: dict[str, Any] = {
        "nodes_featureids": random.integers(0, features, count * size),
        "nodes_values": random.random(count * size),
        "nodes_modes": np.tile(np.where(is_leaf, "LEAF", "BRANCH_LEQ"), count),
        "nodes_truenodeids": np.tile(np.where(is_leaf, 0, 2 * nodes + 1), count),
        "nodes_falsenodeids": np.tile(np.where(is_leaf, 0, 2 * nodes + 2), count),
        "target_ids": np.zeros(count * (inner + 1), int),
        "target_weights": random.standard_normal(count * (inner + 1)),
    }
    leaves = np.tile(is_leaf, count)
    for name, values in ids.items():
        attributes |= {f"nodes_{name}": values, f"target_{name}": values[leaves]}
    lists = {name: values.tolist() for name, values in attributes.items()}
    node = helper.make_node("TreeEnsembleRegressor", ["INPUT"], ["OUTPUT"], domain="ai.onnx.ml", n_targets=1, **lists)
    model = graph_of([node], [features], [1])
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return model


def bert(columns: int = 768, layers: int = 12, heads: int = 12) -> onnx.ModelProto:
    """IDS INT32 [N, 128] -> OUTPUT FP32 [N, 128, columns], the layers of BERT with random weights.

    Source of the sizes: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", section 3.
    """
    random = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def constant(name: str, value: object, dtype: type = np.float32) -> str:
        weights.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def weight(name: str, *shape: int, scale: float = columns**-0.5) -> str:
        return constant(name, random.standard_normal(shape, np.float32) * np.float32(scale))

    def add(operator: str, *inputs: str, **attributes: Any) -> str:
        output = f"{operator}{len(nodes)}"
        nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def dense(name: str, source: str, into: int, out: int) -> str:
        product = add("MatMul", source, weight(f"{name}.weight", into, out, scale=into**-0.5))
        return add("Add", product, weight(f"{name}.bias", out, scale=0.02))

    def normed(name: str, source: str) -> str:
        gamma, beta = constant(f"{name}.gamma", np.ones(columns)), weight(f"{name}.beta", columns, scale=0.02)
        return add("LayerNormalization", source, gamma, beta, axis=-1)

    half, one, two = (constant(name, value) for name, value in (("half", 0.5), ("one", 1), ("root of two", 2**0.5)))
    width = constant("root of width", (columns // heads) ** 0.5)
    split = constant("split", [0, 0, heads, columns // heads], np.int64)
    merged = constant("merged", [0, 0, columns], np.int64)
    words = add("Gather", weight("words", BERT_WORDS, columns), "IDS")
    x = normed("embeddings", add("Add", words, weight("positions", BERT_TOKENS, columns)))
    for n in range(layers):
        q, k, v = (
            add("Transpose", add("Reshape", dense(f"{n}.{part}", x, columns, columns), split), perm=perm)
            for part, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3]))
        )
        attention = add("Softmax", add("Div", add("MatMul", q, k), width), axis=-1)
        mixed = add("Reshape", add("Transpose", add("MatMul", attention, v), perm=[0, 2, 1, 3]), merged)
        x = normed(f"{n}.attention", add("Add", dense(f"{n}.mixed", mixed, columns, columns), x))
        wide = dense(f"{n}.wide", x, columns, 4 * columns)
        gelu = add("Mul", add("Mul", wide, half), add("Add", add("Erf", add("Div", wide, two)), one))
        x = normed(f"{n}.output", add("Add", dense(f"{n}.narrow", gelu, 4 * columns, columns), x))
    nodes.append(helper.make_node("Identity", [x], ["OUTPUT"]))
    given = helper.make_tensor_value_info("IDS", TensorProto.INT32, ["N", BERT_TOKENS])
    output = helper.make_tensor_value_info("OUTPUT", TensorProto.FLOAT, ["N", BERT_TOKENS, columns])
    graph = helper.make_graph(nodes, "bert", [given], [output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
