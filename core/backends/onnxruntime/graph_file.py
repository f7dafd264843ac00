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
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from trident.core.backends.model_files import message_classes

# A locale that the C library itself has, and whose rules for letters are those of nearly all others.
LOCALE = "C.UTF-8"
# Languages whose locales have rules of their own: an i with a dot keeps it in upper case.
_OWN_RULES = ("az", "crh", "ku", "tr", "tt", "ug")
_MISSING_LOCALE = re.compile(r"Failed to construct locale with name:([^:]+)")

_FLOAT, _STRING = 1, 3
_MESSAGES = {
    "Model": "graph 7 Graph, functions 25 Function*",
    "Function": "node 7 Node*",
    "Graph": "node 1 Node*, initializer 5 Weights*, output 12 ValueInfo*",
    "Weights": "external_data 13 Entry*",
    "Entry": "key 1 bytes, value 2 bytes",
    "Node": "output 2 bytes*, op_type 4 bytes, attribute 5 Attribute*, domain 7 bytes",
    "Attribute": "name 1 bytes, s 4 bytes, g 6 Graph, ints 8 int64*, strings 9 bytes*, graphs 11 Graph*, type 20 int64",
    "ValueInfo": "name 1 bytes, type 2 Type",
    "Type": "tensor_type 1 Tensor",
    "Tensor": "elem_type 1 int64, shape 2 Shape",
    "Shape": "dim 1 Dimension*",
    "Dimension": "dim_value 1 int64",
}
_Model = message_classes("trident.onnx", _MESSAGES)["Model"]


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
    model = _Model()
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
