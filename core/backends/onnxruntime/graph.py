"""The inputs and outputs of a session's graph, in the server's terms.

Source: docs/spec/onnxruntime-backend.md sections 5.3 and 5.4.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from trident.core.backends.onnxruntime.graph_file import is_zipped
from trident.core.config.problem import ModelSignature, TensorSignature, is_plain
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import BucketSpec
from trident.core.errors import RepositoryUnavailable, Unsupported
from trident.core.inference.tensors import BY_ONNX_NAME, Shape
from trident.core.repository.layout_mistakes import missing_file_hint

DEFAULT_FILE = "model.onnx"


def model_path(version: Path, config: ModelConfig, capability: str = "") -> Path:
    """The model file in the directory of a version, for a GPU of compute `capability` (`7.5`), or "" for a CPU.

    If the configured name is a directory, the file is `model.onnx` in it. Links are followed wherever they lead,
    because versions may share weights and the snapshots of a hub consist of links. Raises RepositoryUnavailable with
    Triton's text.
    """
    name = config.cc_model_filenames.get(capability, "") or config.default_model_filename or DEFAULT_FILE
    path = version / name
    if is_plain(name):
        found = path / DEFAULT_FILE if os.path.isdir(path) else path
        if os.path.isfile(found):
            return found
    raise RepositoryUnavailable(
        f"unable to find '{path}' for model instance '{config.name}'",
        hint=missing_file_hint(version, config, path.name),
        model=config.name,
    )


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


def has_bounded_graph(path: Path) -> bool:
    """Whether the running time of the graph in the file at `path` is independent of values; False if unknown."""
    if path.suffix == ".ort" or not _HEADER_SIZE < path.stat().st_size <= _SIZE_AT_MOST:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content[4:8] != _ORT_FORMAT and _FOUND.search(content) is None


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


def shape_of(argument: Any) -> Shape:
    """The dimensions of an input or output of a graph. A dimension with a name, or without a number, is -1."""
    return tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in argument.shape)


def _tensors(arguments: Iterable[Any], model_name: str) -> tuple[TensorSignature, ...]:
    return tuple(_tensor(argument, model_name) for argument in arguments)


def _tensor(argument: Any, model_name: str) -> TensorSignature:
    for beginning, onnx_type in _NOT_TENSORS.items():
        if argument.type.startswith(beginning):
            raise Unsupported(
                f"Unsupported ONNX Type '{onnx_type}' for I/O '{argument.name}', expected 'ONNX_TYPE_TENSOR'.",
                hint=_WITHOUT_ZIP_MAP if is_zipped(argument.type) else _WITH_TENSORS,
                model=model_name,
            )
    datatype = BY_ONNX_NAME.get(argument.type)
    return TensorSignature(argument.name, datatype.name if datatype else "", shape_of(argument))
