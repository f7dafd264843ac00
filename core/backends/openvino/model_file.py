"""Finds the file of an OpenVINO model, and tells what it says itself. Imports no OpenVINO.

Source: docs/spec/framework-backends.md sections 6.1 and 6.6.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from xml.parsers import expat

from trident.core.backends.model_files import content_hint, path_of_model, written_by
from trident.core.backends.openvino.settings import OpenVinoSettings
from trident.core.config.problem import ModelSignature, TensorSignature
from trident.core.config.schema import ModelConfig, ModelInput, ModelOutput, datatype_of
from trident.core.errors import ModelLoadFailed
from trident.core.inference.tensors import Shape

DATATYPES = {
    "boolean": "BOOL",
    "f16": "FP16",
    "f32": "FP32",
    "f64": "FP64",
    **{f"i{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
}
"""The names of datatypes by those of OpenVINO's."""

TYPES = {datatype: name for name, datatype in DATATYPES.items()}


def tensor_name(friendly: str, names: Iterable[str]) -> str:
    """The name of an input or output with the names `names`; one without any gets `friendly`, that of its node.

    The graphs of TensorFlow number the results of a node, as in `y:0`: its first result has the node's name.
    """
    known = set(names)
    # Of several names the node has the one of the file.
    return (friendly if friendly in known or not known else min(known)).removesuffix(":0")


def begins_with_batch(layout: str) -> bool:
    """Whether `layout`, in OpenVINO's form such as `[N,C,H,W]`, names the first dimension the batch."""
    return layout.strip("[]").split(",")[0] == "N"


def as_converted(config: ModelConfig, signature: ModelSignature, *, any_batch: bool) -> ModelSignature:
    """`signature` with the numeric datatypes of `config`, to which tensors are converted.

    `any_batch`: the first dimensions become variable.
    """

    def changed(
        tensors: Sequence[TensorSignature], entries: Iterable[ModelInput | ModelOutput]
    ) -> Iterable[TensorSignature]:
        wanted = {entry.name: datatype_of(entry.data_type) for entry in entries}
        for tensor in tensors:
            row = wanted.get(tensor.name)
            datatype = row.name if row and row.name in TYPES and tensor.datatype else tensor.datatype
            yield replace(tensor, datatype=datatype, shape=(-1, *tensor.shape[1:]) if any_batch else tensor.shape)

    return ModelSignature(
        tuple(changed(signature.inputs, config.input)), tuple(changed(signature.outputs, config.output))
    )


# A document type is refused, so that no entity is expanded. Source: docs/spec/framework-backends.md section 6.6; the
# format of OpenVINO's intermediate representation, version 11.


# A dimension is a number, `?`, or bounds such as `1..8`.
_NUMBER = re.compile(r"\d{1,18}")
# Those of ports: FP32, I64, BOOL.
_PRECISIONS = {name.replace("f", "FP").upper().replace("BOOLEAN", "BOOL"): name for name in DATATYPES}


class _NotRead(Exception):
    """The text has what no such file has."""


@dataclass(slots=True)
class _Layer:
    """What is known of a Parameter or Result. `dims` are those of its last port."""

    name: str
    number: str
    is_input: bool
    names: str = ""
    element_type: str = ""
    shape: str | None = None
    dims: list[str] = field(default_factory=list)

    def tensor(self) -> TensorSignature:
        dims = self.dims if self.shape is None else [dim for dim in self.shape.split(",") if dim]
        names = [name.replace("\0", ",") for name in self.names.replace("\\,", "\0").split(",") if name]
        datatype = DATATYPES.get(self.element_type, "")
        return TensorSignature(tensor_name(self.name, names), datatype, _shape(dims))


@dataclass(slots=True)
class _Reader:
    """Takes the events of the parser. `weights` are the bytes that the constants have in the file beside it."""

    layers: list[_Layer] = field(default_factory=list)
    weights: int = 0
    _layouts: dict[str, str] = field(default_factory=dict)
    _sources: dict[str, str] = field(default_factory=dict)
    _number: str = ""
    _path: list[str] = field(default_factory=list)
    _layer: _Layer | None = None

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if not self._path and tag != "net":
            raise _NotRead(f"its first element is <{tag[:40]}>, not <net>")
        self._path.append(tag)
        if tag == "layer":
            self._number = attributes.get("id", "")
            if attributes.get("type") in ("Parameter", "Result"):
                is_input = attributes["type"] == "Parameter"
                names = attributes.get("output_names", "")
                self._layer = _Layer(attributes.get("name", ""), self._number, is_input, names)
        elif tag == "edge":
            self._sources[attributes.get("to-layer", "")] = attributes.get("from-layer", "")
        elif tag == "attribute" and attributes.get("name") == "layout":
            self._layouts[self._number] = attributes.get("layout", "")
        layer = self._layer
        if layer is None:
            if tag == "data" and "offset" in attributes:
                end = int(attributes["offset"]) + int(attributes.get("size", "0"))
                self.weights = max(self.weights, end)
            return
        if tag == "data" and layer.is_input:
            layer.shape, layer.element_type = attributes.get("shape", ""), attributes.get("element_type", "")
        elif tag == "port":
            layer.names = attributes.get("names", layer.names)
            layer.element_type = layer.element_type or _PRECISIONS.get(attributes.get("precision", ""), "")
        elif tag == "dim":
            layer.dims.append("")

    def layout(self, layer: _Layer) -> str:
        """That of a Result is written with the layer that it is the result of."""
        return self._layouts.get(layer.number if layer.is_input else self._sources.get(layer.number, ""), "")

    def text(self, text: str) -> None:
        if self._layer is not None and self._path[-1:] == ["dim"]:
            self._layer.dims[-1] += text

    def end(self, tag: str) -> None:
        self._path.pop()
        if tag == "layer" and self._layer is not None:
            self.layers.append(self._layer)
            self._layer = None


def signature_of_file(path: Path, model: str) -> ModelSignature:
    """The tensors of the XML at `path`, as OpenVINO names them.

    Raises ModelLoadFailed for what is none, and for weights that are missing or incomplete.
    """
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = reader.start, reader.end
    parser.CharacterDataHandler = reader.text
    parser.StartDoctypeDeclHandler = _refuse
    try:
        with path.open("rb") as file:
            parser.ParseFile(file)
    except (expat.ExpatError, _NotRead, ValueError, OSError) as exc:
        raise ModelLoadFailed(
            f"failed to load model '{model}': '{path.name}' is not a model of OpenVINO: {exc}",
            hint=content_hint(path) or f"the file{written_by(path)} is incomplete, or something else: copy it again",
            model=model,
        ) from exc
    _check_weights(path, reader.weights, model)
    return ModelSignature(
        tuple(layer.tensor() for layer in reader.layers if layer.is_input),
        tuple(layer.tensor() for layer in reader.layers if not layer.is_input),
        can_batch=all(begins_with_batch(reader.layout(layer)) for layer in reader.layers),
    )


def _check_weights(path: Path, needed: int, model: str) -> None:
    """Raise ModelLoadFailed unless the file beside the XML at `path` has the `needed` bytes of weights."""
    weights = path.with_suffix(".bin")
    size = weights.stat().st_size if weights.is_file() else 0
    if size >= needed:
        return
    hint = content_hint(weights) if weights.is_file() else f"put '{weights.name}' beside '{path.name}'"
    raise ModelLoadFailed(
        f"failed to load model '{model}': '{path.name}' needs {needed} bytes of weights, '{weights.name}' has {size}",
        hint=hint or f"'{weights.name}' is incomplete, or belongs to another '{path.name}': copy both again",
        model=model,
    )


def _refuse(*_: object) -> None:
    raise _NotRead("it has a document type")


def _shape(dims: list[str]) -> Shape:
    return tuple(int(dim) if _NUMBER.fullmatch(dim.strip()) else -1 for dim in dims)


DEFAULT_FILE = "model.xml"


def model_path(version: Path, config: ModelConfig) -> Path:
    """The file, or the folder of a SavedModel, in the directory of a version. Raises RepositoryUnavailable."""
    return path_of_model(version, config, config.default_model_filename or DEFAULT_FILE, is_there=Path.exists)


def signature_without_openvino(version: Path, config: ModelConfig) -> ModelSignature | None:
    """What OpenVINO's own format says of the tensors; None for other files, and where the inputs are to be reshaped.

    Raises a ServerError for a file that is missing or broken. A written batch size is taken as possible: only OpenVINO
    can tell whether the operators allow it.
    """
    path = model_path(version, config)
    if path.suffix != ".xml":
        return None
    signature = signature_of_file(path, config.name)
    if not config.input or not config.output:
        return signature
    reshapes = OpenVinoSettings.read(config).reshapes
    return None if reshapes else as_converted(config, signature, any_batch=config.max_batch_size > 0)
