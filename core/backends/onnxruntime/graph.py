"""The inputs and outputs of a session's graph, in the server's terms.

Source: docs/spec/onnxruntime-backend.md sections 5.3 and 5.4.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from google.protobuf.message import DecodeError

from trident.core.backends.model_files import message_classes
from trident.core.config.problem import ModelSignature, TensorSignature, is_plain, open_file
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import BucketSpec
from trident.core.errors import ModelLoadFailed, RepositoryUnavailable, Unsupported
from trident.core.inference.tensors import BY_ONNX_NAME
from trident.core.memo import Memo
from trident.core.repository.layout_hints import missing_file_hint

DEFAULT_FILE = "model.onnx"


def model_path(version: Path, config: ModelConfig, capability: str = "") -> Path:
    """The model file in the directory of a version, for a GPU of compute `capability` (`7.5`), or "" for a CPU.

    If the configured name is a directory, the file is `model.onnx` in it. Links are followed wherever they lead,
    because versions may share weights and the snapshots of a hub consist of links. Raises ModelLoadFailed, or
    RepositoryUnavailable for a directory without the file, with Triton's texts.
    """
    name = config.cc_model_filenames.get(capability, "") or config.default_model_filename or DEFAULT_FILE
    path = version / name
    is_folder = os.path.isdir(path)
    found = path / DEFAULT_FILE if is_folder else path
    if is_plain(name) and os.path.isfile(found):
        return found
    hint = missing_file_hint(version, config, path.name)
    if is_folder:
        text = f"unable to find '{found}' for model instance '{config.name}'"
        raise RepositoryUnavailable(text, hint=hint, model=config.name)
    raise ModelLoadFailed(f"failed to stat file {path}", hint=hint, model=config.name)


def library_path(version: Path, name: str) -> str:
    """The path of a custom operator library: in the model's directory, or else `name` for the system to find.

    Such libraries often belong to the server's installation, so `name` may be any path.
    """
    for folder in (version, version.parent):
        path = folder / name
        if is_plain(name) and os.path.isfile(path):
            return str(path)
    return name


def size_of_files(folder: Path) -> int:
    """The bytes of all files below `folder`. A file that vanishes meanwhile, or that cannot be read, counts as 0."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += os.stat(os.path.join(parent, name)).st_size
    return size


# Some operators repeat a part of the graph, or make a tensor whose size is a value. They are found by their names in
# the file, because ONNX Runtime does not expose the parsed graph. Source: ONNX's protobuf definition
# (NodeProto.op_type is field 4) and its operator reference.


_OPERATORS = (
    # repeat
    *(b"Loop", b"Scan", b"SequenceMap", b"BeamSearch", b"GreedySearch", b"Sampling", b"WhisperBeamSearch"),
    # make a tensor whose size is the value of an input
    *(b"Range", b"Tile", b"Expand", b"ConstantOfShape", b"Resize", b"Upsample", b"OneHot", b"Pad", b"CenterCropPad"),
    *(b"Col2Im", b"AffineGrid", b"CropAndResize", b"DFT", b"STFT", b"MelWeightMatrix", b"HannWindow", b"HammingWindow"),
    *(b"BlackmanWindow", b"MaxUnpool", b"SplitToSequence"),
)
_FIELD = b'"'
_FOUND = re.compile(_FIELD + b"(?:%b)" % b"|".join(re.escape(bytes([len(name)]) + name) for name in _OPERATORS))
# Follows the first four bytes of a file in ONNX Runtime's own format, which stores names in another way.
_ORT_FORMAT = b"ORTM"
_HEADER_SIZE = 8
# Larger files are not searched: executions of such graphs are hardly ever short.
_SIZE_AT_MOST = 16 << 20


# True for files that have one, by their identity: each instance asks, and models on demand are loaded over and over.
_BOUNDED: Memo[tuple[str, int, int, int, int], bool] = Memo(10_000)


def has_bounded_graph(path: Path) -> bool:
    """Return True if the running time of the graph in the file at `path` is known not to depend on values."""
    status = path.stat()
    if path.suffix == ".ort" or not _HEADER_SIZE < status.st_size <= _SIZE_AT_MOST:
        return False
    key = str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    known = _BOUNDED.get(key)
    if known is None:
        content = without_weights(path)
        known = _BOUNDED[key] = content[4:8] != _ORT_FORMAT and _FOUND.search(content) is None
    return known


# The fields of ModelProto and GraphProto: graph; initializer and sparse_initializer.
_GRAPH = 7
_WEIGHTS = (5, 15)
# The bytes of a value by its type on the wire; -1: they are written before it.
_VARINT = 0
_WIRE_SIZES = {_VARINT: 0, 1: 8, 2: -1, 5: 4}
# Of a file whose nodes take more, as constants may.
_NODES_AT_MOST = 16 << 20


def without_weights(path: Path) -> bytes:
    """The model file at `path` but the weights of its graph, at most 16 MiB: to search those takes longer than a load.

    Of a file that is not a message of protobuf, such as one in ONNX Runtime's own format, the beginning.
    """
    with open_file(path) as file:
        end = os.fstat(file.fileno()).st_size
        try:
            return b"".join(_parts_without_weights(file, end))[:_NODES_AT_MOST]
        except (LookupError, ValueError):
            file.seek(0)
            return file.read(_NODES_AT_MOST)


def _parts_without_weights(file: BinaryIO, end: int, *, is_graph: bool = False) -> Iterator[bytes]:
    """The fields of the message up to the position `end`. Raises LookupError and ValueError if it is not one."""
    size = 0
    while size < _NODES_AT_MOST and (begin := file.tell()) < end:
        number, kind = divmod(_varint(file), 8)
        length = _WIRE_SIZES[kind]
        if kind == _VARINT:
            _varint(file)
        elif length < 0:
            length = _varint(file)
        after = file.tell() + length
        if after > end:
            raise ValueError(f"field {number} ends behind its message")
        if number == _GRAPH and not is_graph:
            yield from _parts_without_weights(file, after, is_graph=True)
        elif not is_graph or number not in _WEIGHTS:
            file.seek(begin)
            size += after - begin
            yield file.read(min(after - begin, _NODES_AT_MOST))
        file.seek(after)


def _varint(file: BinaryIO) -> int:
    number = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)[0]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number
    raise ValueError("a number of more than 64 bits")


def named_axes(session: Any, buckets: BucketSpec) -> dict[str, list[int]]:
    """The dimensions of each output with the name that the padded dimension of an input has; without names, none."""
    inputs = {argument.name: argument.shape for argument in session.get_inputs()}
    given = {inputs[name][axis] for name, axis in buckets.axes.items() if name in inputs}
    names = {name for name in given if isinstance(name, str)}
    return {
        argument.name: [axis for axis, dim in enumerate(argument.shape) if dim in names]
        for argument in session.get_outputs()
    }


# The beginnings of ONNX Runtime's types that are not tensors, and their names in its C interface.
_NOT_TENSORS = {
    "seq(": "ONNX_TYPE_SEQUENCE",
    "map(": "ONNX_TYPE_MAP",
    "optional(": "ONNX_TYPE_OPTIONAL",
    "sparse_tensor(": "ONNX_TYPE_SPARSETENSOR",
    "opaque(": "ONNX_TYPE_OPAQUE",
}


_WITH_TENSORS = "export the model with tensors as its inputs and outputs"
_WITHOUT_ZIP_MAP = (
    "export the model without ZipMap: options={id(model): {'zipmap': False}} of skl2onnx, zipmap=False of onnxmltools"
)


def signature_of(session: Any, model_name: str) -> ModelSignature:
    """The signature of a session's graph, in the session's order. Raises Unsupported if not all are tensors."""
    return ModelSignature(
        inputs=_tensors(session.get_inputs(), model_name),
        outputs=_tensors(session.get_outputs(), model_name),
        optional_inputs=_tensors(session.get_overridable_initializers(), model_name),
    )


def _tensors(arguments: Iterable[Any], model_name: str) -> tuple[TensorSignature, ...]:
    found: list[TensorSignature] = []
    for argument in arguments:
        for beginning, onnx_type in _NOT_TENSORS.items():
            if argument.type.startswith(beginning):
                raise Unsupported(
                    f"Unsupported ONNX Type '{onnx_type}' for I/O '{argument.name}', expected 'ONNX_TYPE_TENSOR'.",
                    hint=_WITHOUT_ZIP_MAP if is_zipped(argument.type) else _WITH_TENSORS,
                    model=model_name,
                )
        datatype = BY_ONNX_NAME.get(argument.type)
        # A dimension with a name, or without a number, is variable.
        shape = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in argument.shape)
        found.append(TensorSignature(argument.name, datatype.name if datatype else "", shape))
    return tuple(found)


# The file itself: changes where it cannot be served as it is, and the files with its weights.
#
# Exporters of scikit-learn and LightGBM end a classifier with a ZipMap: a sequence with a map from label to probability
# for each row, which the v2 protocol cannot express. The tensor before it has one column for each label.
#
# A StringNormalizer changes the case of texts by the rules of a locale, en_US.UTF-8 if its model names none, as those
# of scikit-learn. ONNX Runtime does not load it on a system without that locale, which is what slim images are.
# Source: ONNX's protobuf definition; its reference of ai.onnx.ml.ZipMap and of StringNormalizer.


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
        values = {attribute.name: attribute for attribute in node.attribute}
        if b"classlabels_int64s" in values:
            names = tuple(map(str, values[b"classlabels_int64s"].ints))
        else:
            names = tuple(text.decode(errors="replace") for text in values[b"classlabels_strings"].strings)
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
