"""Small real ONNX models for tests, built when asked for. Every function returns a checked model; `write` stores it.

A shape is a list of numbers, names (free dimensions) and, for a tensor without dimensions, nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trident.core.inference.tensors import DATATYPES

Dims = Sequence[int | str]

# ONNX element types by v2 datatype.
ELEMENT_TYPES: dict[str, int] = {row.name: helper.np_dtype_to_tensor_dtype(row.dtype) for row in DATATYPES}
ELEMENT_TYPES["BF16"] = TensorProto.BFLOAT16  # numpy has none

# Old enough for every ONNX Runtime that the project supports.
OPSET = 17
IR_VERSION = 8


def write(model: onnx.ModelProto, path: Path) -> Path:
    """Store `model` at `path`, making its folders; returns `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def write_version(model: onnx.ModelProto, repository: Path, name: str, config: str | None = None) -> Path:
    """Store `model` as version 1 of model `name` in `repository`, with `config` as its config.pbtxt if given.

    Returns the version directory.
    """
    version = write(model, repository / name / "1" / "model.onnx").parent
    if config is not None:
        (repository / name / "config.pbtxt").write_text(config)
    return version


def tensor(name: str, datatype: str, shape: Dims) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, ELEMENT_TYPES[datatype], list(shape))


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    opset: int = OPSET,
    domains: Sequence[str] = ("",),
) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(initializers))
    versions = [helper.make_opsetid(domain, 1 if domain else opset) for domain in domains]
    model = helper.make_model(graph, opset_imports=versions, ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    return model


def constant(name: str, values: Any, datatype: str = "INT64") -> onnx.TensorProto:
    dtype = helper.tensor_dtype_to_np_dtype(ELEMENT_TYPES[datatype])
    return numpy_helper.from_array(np.asarray(values, dtype=dtype), name)


def add_sub(datatype: str = "INT32", width: int | str = 16, batch: int | str | None = "batch") -> onnx.ModelProto:
    """INPUT0, INPUT1 -> OUTPUT0 (sum), OUTPUT1 (difference). `batch` None: no batch dimension."""
    shape: Dims = [width] if batch is None else [batch, width]
    return build(
        [
            helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
            helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
        ],
        [tensor("INPUT0", datatype, shape), tensor("INPUT1", datatype, shape)],
        [tensor("OUTPUT0", datatype, shape), tensor("OUTPUT1", datatype, shape)],
    )


def identity(datatype: str = "FP32", shape: Dims = ("batch", "n"), inputs: int = 1) -> onnx.ModelProto:
    """INPUT0 -> OUTPUT0 (and INPUT1 -> OUTPUT1, …), unchanged, of any datatype and shape."""
    return build(
        [helper.make_node("Identity", [f"INPUT{n}"], [f"OUTPUT{n}"]) for n in range(inputs)],
        [tensor(f"INPUT{n}", datatype, shape) for n in range(inputs)],
        [tensor(f"OUTPUT{n}", datatype, shape) for n in range(inputs)],
    )


def strings(shape: Dims = ("batch", "n")) -> onnx.ModelProto:
    """INPUT0 -> OUTPUT0, BYTES, unchanged."""
    return identity("BYTES", shape)


def scalar(datatype: str = "FP32") -> onnx.ModelProto:
    """INPUT0 -> OUTPUT0, both without dimensions."""
    return identity(datatype, ())


def string_to_number(shape: Dims = ("batch", "n")) -> onnx.ModelProto:
    """INPUT0 (BYTES) -> OUTPUT0 (FP32); fails on text that is not a number."""
    return build(
        [helper.make_node("Cast", ["INPUT0"], ["OUTPUT0"], to=TensorProto.FLOAT)],
        [tensor("INPUT0", "BYTES", shape)],
        [tensor("OUTPUT0", "FP32", shape)],
    )


def two_outputs() -> onnx.ModelProto:
    """INPUT0 FP32 [batch, 4] -> NEGATED FP32 [batch, 4] and TOTAL FP32 [batch, 1]."""
    return build(
        [
            helper.make_node("Neg", ["INPUT0"], ["NEGATED"]),
            helper.make_node("ReduceSum", ["INPUT0", "AXES"], ["TOTAL"], keepdims=1),
        ],
        [tensor("INPUT0", "FP32", ["batch", 4])],
        [tensor("NEGATED", "FP32", ["batch", 4]), tensor("TOTAL", "FP32", ["batch", 1])],
        [constant("AXES", [1])],
    )


def ragged_item_shapes() -> onnx.ModelProto:
    """INPUT0 FP32 [-1] and SHAPES FP32 [items, rank] -> DOUBLED [-1] and SHAPES_OUT [items, rank]."""
    return build(
        [
            helper.make_node("Add", ["INPUT0", "INPUT0"], ["DOUBLED"]),
            helper.make_node("Identity", ["SHAPES"], ["SHAPES_OUT"]),
        ],
        [tensor("INPUT0", "FP32", ["elements"]), tensor("SHAPES", "FP32", ["items", "rank"])],
        [tensor("DOUBLED", "FP32", ["elements"]), tensor("SHAPES_OUT", "FP32", ["items", "rank"])],
    )


def packed_embeddings() -> onnx.ModelProto:
    """TOKENS INT64 [-1] of a whole batch -> EMBEDDED FP32 [-1, 2]: (t, 10 t) for each token t below 8; others fail."""
    table = np.outer(np.arange(8), [1, 10])
    return build(
        [helper.make_node("Gather", ["TABLE", "TOKENS"], ["EMBEDDED"])],
        [tensor("TOKENS", "INT64", ["tokens"])],
        [tensor("EMBEDDED", "FP32", ["tokens", 2])],
        [constant("TABLE", table, "FP32")],
    )


def padded_view() -> onnx.ModelProto:
    """INPUT0 FP32 [batch, length] and SHAPES INT32 [batch, rank] -> what a padded graph sees.

    OUTPUT0 is INPUT0, SEEN INT64 [batch, 2] has the shape of INPUT0 in each row, SHAPES_OUT is SHAPES, TOTAL FP32
    [batch, 1] is the sum of each row, and TWICE FP32 [batch, other] is INPUT0 two times, one after the other.
    """
    return build(
        [
            helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"]),
            helper.make_node("Identity", ["SHAPES"], ["SHAPES_OUT"]),
            helper.make_node("Shape", ["INPUT0"], ["shape"]),
            helper.make_node("Shape", ["INPUT0"], ["rows"], end=1),
            helper.make_node("Concat", ["rows", "one"], ["times"], axis=0),
            helper.make_node("Reshape", ["shape", "row"], ["shape_row"]),
            helper.make_node("Tile", ["shape_row", "times"], ["SEEN"]),
            helper.make_node("ReduceSum", ["INPUT0", "one"], ["TOTAL"], keepdims=1),
            helper.make_node("Concat", ["INPUT0", "INPUT0"], ["TWICE"], axis=1),
        ],
        [tensor("INPUT0", "FP32", ["batch", "length"]), tensor("SHAPES", "INT32", ["batch", "rank"])],
        [
            tensor("OUTPUT0", "FP32", ["batch", "length"]),
            tensor("SEEN", "INT64", ["batch", 2]),
            tensor("SHAPES_OUT", "INT32", ["batch", "rank"]),
            tensor("TOTAL", "FP32", ["batch", 1]),
            tensor("TWICE", "FP32", ["batch", "other"]),
        ],
        [constant("one", [1]), constant("row", [1, -1])],
    )


def picky(width: int = 4) -> onnx.ModelProto:
    """INDEX INT64 [batch, 1] -> VALUE FP32 [batch, 1], looked up in a table of `width`; another index fails the run."""
    return build(
        [helper.make_node("Gather", ["TABLE", "INDEX"], ["VALUE"])],
        [tensor("INDEX", "INT64", ["batch", 1])],
        [tensor("VALUE", "FP32", ["batch", 1])],
        [constant("TABLE", np.arange(width) * 10, "FP32")],
    )


def slow(size: int = 256, rounds: int = 32) -> onnx.ModelProto:
    """INPUT0 FP32 [batch, size] -> OUTPUT0, through `rounds` matrix products: work for a processor, a few ms a row."""
    weights = numpy_helper.from_array(np.eye(size, dtype=np.float32) * np.float32(0.5), "WEIGHTS")
    names = ["INPUT0", *(f"X{n}" for n in range(1, rounds)), "OUTPUT0"]
    nodes = [helper.make_node("MatMul", [names[n], "WEIGHTS"], [names[n + 1]]) for n in range(rounds)]
    shape: Dims = ["batch", size]
    return build(nodes, [tensor("INPUT0", "FP32", shape)], [tensor("OUTPUT0", "FP32", shape)], [weights])


def waiting() -> onnx.ModelProto:
    """ROUNDS INT64 [1] -> COUNT INT64 [1]: a loop of as many rounds as the input says."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["go_on_out"]),
            helper.make_node("Add", ["count", "one"], ["count_out"]),
        ],
        "body",
        [tensor("round", "INT64", ()), tensor("go_on", "BOOL", ()), tensor("count", "INT64", [1])],
        [tensor("go_on_out", "BOOL", ()), tensor("count_out", "INT64", [1])],
        [constant("one", [1])],
    )
    return build(
        [
            helper.make_node("Squeeze", ["ROUNDS"], ["trips"]),
            helper.make_node("Loop", ["trips", "yes", "zero"], ["COUNT"], body=body),
        ],
        [tensor("ROUNDS", "INT64", [1])],
        [tensor("COUNT", "INT64", [1])],
        [constant("yes", True, "BOOL"), constant("zero", [0])],
    )


def with_default() -> onnx.ModelProto:
    """INPUT0 FP32 [4] plus OFFSET FP32 [4], an initializer (10, 20, 30, 40) that a request may override -> OUTPUT0."""
    return build(
        [helper.make_node("Add", ["INPUT0", "OFFSET"], ["OUTPUT0"])],
        [tensor("INPUT0", "FP32", [4]), tensor("OFFSET", "FP32", [4])],
        [tensor("OUTPUT0", "FP32", [4])],
        [constant("OFFSET", [10, 20, 30, 40], "FP32")],
    )


def allocating() -> onnx.ModelProto:
    """SIZE INT64 [1] -> ZEROS FP32 [n]: as much memory as the input says."""
    return build(
        [helper.make_node("Expand", ["ZERO", "SIZE"], ["ZEROS"])],
        [tensor("SIZE", "INT64", [1])],
        [tensor("ZEROS", "FP32", ["n"])],
        [constant("ZERO", [0], "FP32")],
    )


def answering(text: bytes) -> onnx.ModelProto:
    """INPUT0 BYTES [n] -> OUTPUT0 BYTES [n], unchanged, and ANSWER BYTES [1]: always `text`."""
    elements: list[Any] = [text]
    answer = helper.make_tensor("ANSWER_TEXT", TensorProto.STRING, [1], elements)
    return build(
        [
            helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"]),
            helper.make_node("Identity", ["ANSWER_TEXT"], ["ANSWER"]),
        ],
        [tensor("INPUT0", "BYTES", ["n"])],
        [tensor("OUTPUT0", "BYTES", ["n"]), tensor("ANSWER", "BYTES", [1])],
        [answer],
    )


def classifier(
    labels: Sequence[int] | Sequence[str] = (0, 1, 2), imports: Sequence[str] = ("", "ai.onnx.ml")
) -> onnx.ModelProto:
    """X FP32 [n, 4] -> output_label [n] and output_probability, as scikit-learn's exporter writes a classifier.

    The label is that of the largest score. The scores are sums of 4 / 3 / 2 columns, and a ZipMap maps labels to them.
    """
    numbers = isinstance(labels[0], int)
    kind = {"classlabels_ints": list(labels)} if numbers else {"classlabels_strings": list(labels)}
    zipped = {"classlabels_int64s": list(labels)} if numbers else {"classlabels_strings": list(labels)}
    coefficients = np.tril(np.ones((len(labels), 4), np.float32), 1)
    nodes = [
        helper.make_node(
            "LinearClassifier",
            ["X"],
            ["output_label", "scores"],
            domain="ai.onnx.ml",
            coefficients=coefficients.reshape(-1).tolist(),
            intercepts=[0.0] * len(labels),
            multi_class=0,
            post_transform="NONE",
            **kind,
        ),
        helper.make_node("ZipMap", ["scores"], ["output_probability"], domain="ai.onnx.ml", **zipped),
    ]
    key = TensorProto.INT64 if numbers else TensorProto.STRING
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(key, value))
    label = tensor("output_label", "INT64" if numbers else "BYTES", ["n"])
    outputs = [label, helper.make_value_info("output_probability", maps)]
    return build(nodes, [tensor("X", "FP32", ["n", 4])], outputs, domains=imports)
