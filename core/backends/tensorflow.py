"""The backend `tensorflow`: SavedModels and frozen graphs, each instance in a process of its own.

TensorFlow ends its whole process on some faults, and takes 480 MB and seconds to be imported: it gets the process of a
Python model. Where it is not installed, OpenVINO reads both formats.
Source: docs/spec/framework-backends.md section 6.4.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from trident.core.backends.backend import BackendModel, LoadContext
from trident.core.backends.model_files import (
    content_hint,
    field_of,
    message_classes,
    parameters_of,
    path_of_model,
    written_by,
)
from trident.core.backends.python.backend import PythonBackend, names_python
from trident.core.backends.registry import is_installed
from trident.core.config.problem import InvalidModelConfig, ModelSignature, TensorSignature, read_file
from trident.core.config.schema import ModelConfig, copy_of
from trident.core.config.validate import validate_against_signature
from trident.core.errors import ConfigInvalid, ModelLoadFailed, NotInstalled, installation

_log = logging.getLogger("trident.backends")

_FILE = Path(__file__).with_name("stub_models") / "tensorflow_model.py"
_NOT_NEGATIVE = ("TF_NUM_INTRA_THREADS", "TF_NUM_INTER_THREADS")
_POSITIVE = ("MAX_SESSION_SHARE_COUNT",)


class TensorFlowBackend:
    """Implements Backend. Loader threads, several at once. It imports no TensorFlow: the models' processes do."""

    # TensorFlow places its own operators.
    supports_gpus = True

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._processes = PythonBackend(settings, _FILE)

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature | None:
        """The signature of a SavedModel. A frozen graph does not say what it serves."""
        return signature_of(model_path(path, config), config)

    def check(self, config: ModelConfig) -> None:
        if config.platform not in (SAVED_MODEL, GRAPH_DEF):
            raise ConfigInvalid(
                f"platform {config.platform} not supported for TensorFlow model '{config.name}'",
                hint=f"{SAVED_MODEL} or {GRAPH_DEF}",
                field="platform",
            )
        given = parameters_of(config)
        for names, least, what in ((_NOT_NEGATIVE, 0, "non-negative"), (_POSITIVE, 1, "positive")):
            for name in names:
                text = given.get(name, str(least))
                if not text.isdecimal() or int(text) < least:
                    raise ConfigInvalid(
                        f"parameter '{name}' must be {what} number for TensorFlow model '{config.name}'",
                        hint=f"'{text}' is not",
                        field=field_of(name),
                    )
        if not (_has_tensorflow(config) or is_installed("openvino")):
            raise NotInstalled(
                f"failed to load model '{config.name}': TensorFlow is not installed",
                hint=f"install it: {installation('tensorflow')}; or OpenVINO, the extra 'openvino', which is a tenth "
                "of its size and reads most models",
            )

    def load(self, context: LoadContext) -> BackendModel:
        """Load one version: a process for each instance, or OpenVINO without TensorFlow. Raises a ServerError."""
        config = context.config
        self.check(config)
        path = model_path(context.path, config)
        if config.platform == GRAPH_DEF:
            check_graph(path, config)
        elif signature := signature_of(path, config):
            problems = validate_against_signature(config, signature, config.name)
            if problems:
                raise InvalidModelConfig(problems)
        if _has_tensorflow(config):
            return self._processes.load(context)
        from trident.core.backends.openvino.backend import OpenVinoBackend

        _log.info("TensorFlow is not installed: OpenVINO runs model '%s'", config.name)
        config = copy_of(config)
        config.default_model_filename = path.name  # which OpenVINO would not guess
        try:
            return OpenVinoBackend().load(replace(context, config=config))
        except ModelLoadFailed as error:
            raise ModelLoadFailed(
                error.message,
                hint=f"'{path.name}'{written_by(path)} cannot be run by OpenVINO; install TensorFlow: "
                f"{installation('tensorflow')}",
            ) from error


def _has_tensorflow(config: ModelConfig) -> bool:
    return names_python(config) or is_installed("tensorflow")


# The files, which are read without TensorFlow. Source: docs/spec/framework-backends.md sections 6.1 and 6.4.


# A `map<string, T>` has the same bytes as many messages with the fields key and value.
_MESSAGES = {
    "Dim": "size 1 int64",
    "Shape": "dim 2 Dim*, unknown_rank 3 bool",
    "TensorInfo": "name 1 string, dtype 2 int32, tensor_shape 3 Shape",
    "NamedTensor": "key 1 string, value 2 TensorInfo",
    "SignatureDef": "inputs 1 NamedTensor*, outputs 2 NamedTensor*",
    "NamedSignature": "key 1 string, value 2 SignatureDef",
    "MetaInfo": "tags 4 string*, tensorflow_version 5 string",
    "MetaGraph": "meta_info_def 1 MetaInfo, signature_def 5 NamedSignature*",
    "SavedModel": "meta_graphs 2 MetaGraph*",
    "Node": "name 1 string, op 2 string",
    "Function": "node_def 3 Node*",
    "Library": "function 1 Function*",
    "GraphDef": "node 1 Node*, library 2 Library",
    # The same bytes, of which others are read.
    "MetaGraphOfNodes": "graph_def 2 GraphDef",
    "SavedNodes": "meta_graphs 2 MetaGraphOfNodes*",
}
_CLASSES = message_classes("trident.tensorflow", _MESSAGES)
SavedModel = _CLASSES["SavedModel"]
GraphDef = _CLASSES["GraphDef"]

SAVED_MODEL = "tensorflow_savedmodel"
GRAPH_DEF = "tensorflow_graphdef"
TAG = "TF_GRAPH_TAG"
SIGNATURE = "TF_SIGNATURE_DEF"

_DEFAULT_TAG = "serve"
_DEFAULT_SIGNATURE = "serving_default"
_NOT_SERVED = ("__saved_model_init_op", "__saved_model_train_op")
_PROTOCOL_FILE = "saved_model.pb"
# The numbers of tensorflow.DataType.
_DATATYPES = {
    1: "FP32",
    2: "FP64",
    3: "INT32",
    4: "UINT8",
    5: "INT16",
    6: "INT8",
    7: "BYTES",
    9: "INT64",
    10: "BOOL",
    17: "UINT16",
    19: "FP16",
    22: "UINT32",
    23: "UINT64",
}


def model_path(version: Path, config: ModelConfig) -> Path:
    is_saved_model = config.platform == SAVED_MODEL
    name = config.default_model_filename or ("model.savedmodel" if is_saved_model else "model.graphdef")
    return path_of_model(version, config, name, is_there=Path.is_dir if is_saved_model else Path.is_file)


def signature_of(path: Path, config: ModelConfig) -> ModelSignature | None:
    """The tensors of the signature that `config` chooses; None for a graph, which does not say what it serves.

    Raises a ServerError with Triton's text.
    """
    if config.platform == GRAPH_DEF:
        return None
    graph = _graph_of(_read(path / _PROTOCOL_FILE, SavedModel(), config), config)
    signatures = {entry.key: entry.value for entry in graph.signature_def if entry.key not in _NOT_SERVED}
    wanted = parameters_of(config).get(SIGNATURE, "")
    key = wanted or (_DEFAULT_SIGNATURE if _DEFAULT_SIGNATURE in signatures else min(signatures, default=""))
    if key not in signatures:
        raise ConfigInvalid(
            f"unable to load model '{config.name}', expected '{key or _DEFAULT_SIGNATURE}' signature",
            hint=f"set the parameter {SIGNATURE} to one of: {', '.join(sorted(signatures)) or 'the model has none'}",
            field=field_of(SIGNATURE),
        )
    chosen = signatures[key]
    return ModelSignature(_tensors(chosen.inputs, config), _tensors(chosen.outputs, config))


def operations_in(path: Path) -> set[str]:
    """The operations of the graphs and functions in a `saved_model.pb`. Raises ModelLoadFailed."""
    metas = _read(path, _CLASSES["SavedNodes"](), ModelConfig(name=path.parent.name)).meta_graphs
    return {operation for meta in metas for operation in _operations(meta.graph_def)}


def operations_in_graph(path: Path) -> set[str]:
    """The operations in a frozen graph; an empty set if the file is something else."""
    try:
        return _operations(GraphDef.FromString(read_file(path)))
    except (OSError, DecodeError):
        return set()


def _operations(graph: Any) -> set[str]:
    functions = (function.node_def for function in graph.library.function)
    return {node.op for nodes in (graph.node, *functions) for node in nodes}


def check_graph(path: Path, config: ModelConfig) -> None:
    """Raise ConfigInvalid unless the frozen graph has the inputs and outputs of `config`, with Triton's texts."""
    nodes = _read(path, GraphDef(), config).node
    inputs = {node.name for node in nodes if node.op == "Placeholder"}
    others = {node.name for node in nodes} - inputs
    unable = f"unable to load model '{config.name}', "
    for side, entries, allowed in (("input", config.input, inputs), ("output", config.output, others)):
        for entry in entries:
            if entry.name not in allowed:
                shown = ", ".join(sorted(allowed)) if side == "input" else "all nodes that are no Placeholder"
                raise ConfigInvalid(
                    f"unexpected inference {side} '{entry.name}', allowed {side}s are: {shown}", model=config.name
                )
    if len(config.input) > len(inputs):
        raise ConfigInvalid(
            f"{unable}configuration expects {len(config.input)} inputs, model provides at most {len(inputs)}"
        )


def _read(path: Path, message: Any, config: ModelConfig) -> Any:
    try:
        message.ParseFromString(read_file(path))
    except (OSError, DecodeError) as exc:
        raise ModelLoadFailed(
            f"unable to auto-complete model configuration for '{config.name}', failed to load model: {exc}",
            hint=content_hint(path)
            or f"'{path.name}' is missing, incomplete, or not what its name says: compare it with the original",
        ) from exc
    return message


def _graph_of(saved: Any, config: ModelConfig) -> Any:
    tag = parameters_of(config).get(TAG, _DEFAULT_TAG)
    for graph in saved.meta_graphs:
        if tag in graph.meta_info_def.tags:
            return graph
    there = sorted({found for graph in saved.meta_graphs for found in graph.meta_info_def.tags})
    raise ConfigInvalid(
        f"unable to load model '{config.name}', expected '{tag}' tag",
        hint=f"set the parameter {TAG} to one of the model's tags: {', '.join(there) or 'it has none'}",
        field=field_of(TAG),
    )


def _tensors(entries: Iterable[Any], config: ModelConfig) -> tuple[TensorSignature, ...]:
    found: list[TensorSignature] = []
    for entry in sorted(entries, key=lambda entry: str(entry.key)):  # a map has no order of its own
        info = entry.value
        if info.tensor_shape.unknown_rank:
            raise ConfigInvalid(
                f"Unable to autofill for '{config.name}': the rank of model tensor '{entry.key}' is unknown and "
                "dimensions are not defined",
                hint="write its name, data_type and dims into config.pbtxt",
            )
        shape = tuple(int(dim.size) for dim in info.tensor_shape.dim)
        found.append(TensorSignature(entry.key, _DATATYPES.get(info.dtype, ""), shape))
    return tuple(found)
