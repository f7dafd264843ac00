"""Finds the file of an OpenVINO model, and tells what it says itself. Imports no OpenVINO.

Source: docs/spec/framework-backends.md sections 6.1 and 6.6; the format of OpenVINO's intermediate representation,
version 11.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from trident.core.backends.model_files import content_hint, path_of_model, written_by
from trident.core.backends.openvino.settings import OpenVinoSettings
from trident.core.config.problem import ModelSignature, TensorSignature
from trident.core.config.schema import ModelConfig, ModelInput, ModelOutput, datatype_of
from trident.core.errors import ModelLoadFailed

DEFAULT_FILE = "model.xml"

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
# The ports of results name the types otherwise: FP32, I64, BOOL.
_PORT_DATATYPES = {
    name.replace("f", "FP").upper().replace("BOOLEAN", "BOOL"): datatype for name, datatype in DATATYPES.items()
}
# A dimension is a number, `?`, or bounds such as `1..8`.
_NUMBER = re.compile(r"\s*\d{1,18}\s*")


def model_path(version: Path, config: ModelConfig) -> Path:
    """The file, or the folder of a SavedModel, in the directory of a version. Raises RepositoryUnavailable."""
    return path_of_model(version, config, config.default_model_filename or DEFAULT_FILE, is_there=Path.exists)


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


def signature_without_openvino(version: Path, config: ModelConfig) -> ModelSignature | None:
    """Read the signature from OpenVINO's own format; None for other files, and where the inputs are to be reshaped.

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


def signature_of_file(path: Path, model: str) -> ModelSignature:
    """The tensors of the XML at `path`, as OpenVINO names them.

    Raises ModelLoadFailed for what is none, and for weights that are missing or incomplete.
    """
    try:
        network = ElementTree.parse(path, ElementTree.XMLParser(target=_WithoutDocumentType())).getroot()
        if network.tag != "net":
            raise ValueError(f"its first element is <{network.tag[:40]}>, not <net>")
        signature, needed = _signature(network), _weights_in(network)
    except (ElementTree.ParseError, ValueError, OSError) as exc:
        raise ModelLoadFailed(
            f"failed to load model '{model}': '{path.name}' is not a model of OpenVINO: {exc}",
            hint=content_hint(path) or f"the file{written_by(path)} is incomplete, or something else: copy it again",
            model=model,
        ) from exc
    _check_weights(path, needed, model)
    return signature


class _WithoutDocumentType(ElementTree.TreeBuilder):
    """Refuses a document type, so that no entity is expanded."""

    def doctype(self, name: str, public: str | None, system: str | None) -> None:
        raise ValueError("it has a document type")


def _weights_in(network: ElementTree.Element) -> int:
    """The bytes that the constants have in the file beside the XML."""
    constants = network.iterfind(".//layer[@type='Const']/data")
    return max((int(data.get("offset", "0")) + int(data.get("size", "0")) for data in constants), default=0)


def _signature(network: ElementTree.Element) -> ModelSignature:
    layers = {layer.get("id", ""): layer for layer in network.findall("layers/layer")}
    sources = {edge.get("to-layer", ""): edge.get("from-layer", "") for edge in network.findall("edges/edge")}
    # The layout of a Result is written with the layer that it is the result of.
    inputs = [(layer, layer) for layer in layers.values() if layer.get("type") == "Parameter"]
    outputs = [
        (layer, layers.get(sources.get(number, ""), layer))
        for number, layer in layers.items()
        if layer.get("type") == "Result"
    ]
    return ModelSignature(
        tuple(_tensor(layer) for layer, _ in inputs),
        tuple(_tensor(layer) for layer, _ in outputs),
        can_batch=all(begins_with_batch(_layout(described)) for _, described in (*inputs, *outputs)),
    )


def _layout(layer: ElementTree.Element) -> str:
    return next((each.get("layout", "") for each in layer.iter("attribute") if each.get("name") == "layout"), "")


def _tensor(layer: ElementTree.Element) -> TensorSignature:
    """The tensor of a Parameter or a Result, which have one port each."""
    port = layer.find("*/port")
    if port is None:
        raise ValueError(f"layer '{layer.get('name')}' has no port")
    names = port.get("names", layer.get("output_names", "")).replace("\\,", "\0").split(",")
    name = tensor_name(layer.get("name", ""), [name.replace("\0", ",") for name in names if name])
    data = layer.find("data") if layer.get("type") == "Parameter" else None
    if data is None:
        datatype = _PORT_DATATYPES.get(port.get("precision", ""), "")
        dims = [dim.text or "" for dim in port.iter("dim")]
    else:
        datatype = DATATYPES.get(data.get("element_type", ""), "")
        dims = [dim for dim in data.get("shape", "").split(",") if dim]
    return TensorSignature(name, datatype, tuple(int(dim) if _NUMBER.fullmatch(dim) else -1 for dim in dims))


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
