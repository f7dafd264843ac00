"""Cuts ZipMap nodes out of a graph, so that the probabilities of a classifier leave it as a tensor.

Exporters of scikit-learn and LightGBM end a classifier with a ZipMap: a sequence with a map from label to probability
for each row, which the v2 protocol cannot express. The tensor before it has one column for each label.
Source: ONNX's protobuf definition; its reference of ai.onnx.ml.ZipMap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

_FLOAT = 1
_FIELD = descriptor_pb2.FieldDescriptorProto

# The fields of ONNX that are read or changed, by message: name, number, and type. Protobuf keeps all other fields.
_MESSAGES: dict[str, tuple[tuple[str, int, str, bool], ...]] = {
    "Model": (("graph", 7, "Graph", False),),
    "Graph": (("node", 1, "Node", True), ("output", 12, "ValueInfo", True)),
    "Node": (
        ("output", 2, "bytes", True),
        ("op_type", 4, "bytes", False),
        ("attribute", 5, "Attribute", True),
        ("domain", 7, "bytes", False),
    ),
    "Attribute": (("name", 1, "bytes", False), ("ints", 8, "int64", True), ("strings", 9, "bytes", True)),
    "ValueInfo": (("name", 1, "bytes", False), ("type", 2, "Type", False)),
    "Type": (("tensor_type", 1, "Tensor", False),),
    "Tensor": (("elem_type", 1, "int64", False), ("shape", 2, "Shape", False)),
    "Shape": (("dim", 1, "Dimension", True),),
    "Dimension": (("dim_value", 1, "int64", False),),
}
_SCALARS = {"bytes": _FIELD.TYPE_BYTES, "int64": _FIELD.TYPE_INT64}


@dataclass(frozen=True, slots=True)
class CutGraph:
    """A model file without the ZipMap nodes of its outputs. `labels` has the labels of each such output, in order."""

    content: bytes
    labels: dict[str, tuple[str, ...]]


def is_zipped(onnx_type: str) -> bool:
    """Whether a type of ONNX Runtime is the result of a ZipMap."""
    return onnx_type in ("seq(map(int64,tensor(float)))", "seq(map(string,tensor(float)))")


def without_zip_maps(content: bytes) -> CutGraph | None:
    """The model file `content` with each ZipMap that makes an output replaced by its input, a tensor [-1, labels].

    None if there is no such node, or if `content` is not an ONNX graph (ONNX Runtime also reads a format of its own).
    """
    model = _model_class()()
    try:
        model.ParseFromString(content)
    except DecodeError:
        return None
    graph = model.graph
    outputs = {value.name: value for value in graph.output}
    labels: dict[str, tuple[str, ...]] = {}
    for node in graph.node:
        output = outputs.get(node.output[0]) if node.op_type == b"ZipMap" else None
        if output is None:
            continue
        names = _labels(node)
        node.op_type, node.domain = b"Identity", b""
        node.ClearField("attribute")
        output.ClearField("type")
        output.type.tensor_type.elem_type = _FLOAT
        output.type.tensor_type.shape.dim.add()
        output.type.tensor_type.shape.dim.add().dim_value = len(names)
        labels[output.name.decode()] = names
    return CutGraph(model.SerializeToString(), labels) if labels else None


def _labels(node: Any) -> tuple[str, ...]:
    """The labels of a ZipMap node, which has either numbers or texts."""
    values = {attribute.name: attribute for attribute in node.attribute}
    if b"classlabels_int64s" in values:
        return tuple(map(str, values[b"classlabels_int64s"].ints))
    return tuple(text.decode(errors="replace") for text in values[b"classlabels_strings"].strings)


@cache
def _model_class() -> Any:
    """The class of ONNX's ModelProto with the fields of `_MESSAGES`."""
    file = descriptor_pb2.FileDescriptorProto(name="trident_onnx.proto", package="trident_onnx", syntax="proto2")
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for name, number, kind, repeated in fields:
            label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
            field = message.field.add(name=name, number=number, label=label)
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
            else:
                field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".trident_onnx.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("trident_onnx.Model"))
