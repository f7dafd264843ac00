"""The graph in a model file: changes where it cannot be served as it is, and the files with its weights.

Exporters of scikit-learn and LightGBM end a classifier with a ZipMap: a sequence with a map from label to probability
for each row, which the v2 protocol cannot express. The tensor before it has one column for each label.

A StringNormalizer changes the case of texts by the rules of a locale, en_US.UTF-8 if its model names none, as those of
scikit-learn. ONNX Runtime does not load it on a system without that locale, which is what slim images are.
Source: ONNX's protobuf definition; its reference of ai.onnx.ml.ZipMap and of StringNormalizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

# A locale that the C library itself has, and whose rules for letters are those of nearly all others.
LOCALE = "C.UTF-8"
# Languages whose locales have rules of their own: an i with a dot keeps it in upper case.
_OWN_RULES = ("az", "crh", "ku", "tr", "tt", "ug")
_MISSING_LOCALE = re.compile(r"Failed to construct locale with name:([^:]+)")

_FLOAT, _STRING = 1, 3
_FIELD = descriptor_pb2.FieldDescriptorProto

# The fields of ONNX that are read or changed, by message: name, number, and type. Protobuf keeps all other fields.
_MESSAGES: dict[str, tuple[tuple[str, int, str, bool], ...]] = {
    "Model": (("graph", 7, "Graph", False), ("functions", 25, "Function", True)),
    "Function": (("node", 7, "Node", True),),
    "Graph": (("node", 1, "Node", True), ("initializer", 5, "Weights", True), ("output", 12, "ValueInfo", True)),
    "Weights": (("external_data", 13, "Entry", True),),
    "Entry": (("key", 1, "bytes", False), ("value", 2, "bytes", False)),
    "Node": (
        ("output", 2, "bytes", True),
        ("op_type", 4, "bytes", False),
        ("attribute", 5, "Attribute", True),
        ("domain", 7, "bytes", False),
    ),
    "Attribute": (
        ("name", 1, "bytes", False),
        ("s", 4, "bytes", False),
        ("g", 6, "Graph", False),
        ("ints", 8, "int64", True),
        ("strings", 9, "bytes", True),
        ("graphs", 11, "Graph", True),
        ("type", 20, "int64", False),
    ),
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
    model = _parsed(content)
    if model is None:
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


def missing_locale(failure: str) -> str:
    """The locale without which a session could not be made, from ONNX Runtime's text; "" for another failure."""
    match = _MISSING_LOCALE.search(failure)
    return match[1] if match else ""


def with_known_locale(content: bytes) -> bytes | None:
    """The model file `content` with LOCALE in each StringNormalizer whose own locale has the same rules.

    None if there is no such node, or if `content` is not an ONNX graph.
    """
    model = _parsed(content)
    if model is None:
        return None
    has_changed = False
    nodes = (node for part in (model.graph, *model.functions) for node in _nodes(part))
    for node in (node for node in nodes if node.op_type == b"StringNormalizer"):
        attribute = next((each for each in node.attribute if each.name == b"locale"), None)
        if attribute is None:
            attribute = node.attribute.add(name=b"locale", type=_STRING)
        if attribute.s.decode(errors="replace").split("_")[0] not in _OWN_RULES:
            attribute.s = LOCALE.encode()
            has_changed = True
    return model.SerializeToString() if has_changed else None


def without_links(content: bytes, path: Path) -> tuple[bytes, Path]:
    """The model file `content`, and the folder of the weights that it stores in other files, for a session of bytes.

    ONNX Runtime follows a link at `path` to the folder where the weights may be. Of bytes it knows only the folder that
    it is told, so that the links of a hub's snapshot would lead out of it: their targets are named instead.
    """
    folder = path.resolve().parent
    model = _parsed(content) if folder != path.parent.resolve() else None
    for weights in model.graph.initializer if model is not None else ():
        for entry in (entry for entry in weights.external_data if entry.key == b"location"):
            real = (path.parent / entry.value.decode(errors="replace")).resolve()
            if real.is_relative_to(folder):
                entry.value = str(real.relative_to(folder)).encode()
    return (content, path.parent) if model is None else (model.SerializeToString(), folder)


def external_files(content: bytes) -> dict[str, int]:
    """The other files with weights of the model file `content`, by the names that it has, and the least of their sizes.

    Only those of the graph itself, and not of the graphs in its nodes.
    """
    model = _parsed(content)
    sizes: dict[str, int] = {}
    for weights in model.graph.initializer if model is not None else ():
        entries = {entry.key: entry.value.decode(errors="replace") for entry in weights.external_data}
        if name := entries.get(b"location"):
            ends = [int(entries[key]) for key in (b"offset", b"length") if entries.get(key, "").isdecimal()]
            sizes[name] = max(sizes.get(name, 0), sum(ends))
    return sizes


def _nodes(part: Any) -> Iterator[Any]:
    """The nodes of a graph or function, with those of the graphs in their attributes."""
    for node in part.node:
        yield node
        for attribute in node.attribute:
            for graph in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
                yield from _nodes(graph)


def _parsed(content: bytes) -> Any:
    """The ModelProto in `content`; None if it has none."""
    model = _model_class()()
    try:
        model.ParseFromString(content)
    except DecodeError:
        return None
    return model


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
