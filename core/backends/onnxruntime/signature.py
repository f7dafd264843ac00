"""The inputs and outputs of a session's graph, in the server's terms.

Source: docs/spec/onnxruntime-backend.md sections 5.3 and 5.4.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from core.backends.onnxruntime.graph_file import is_zipped
from core.config.signature import ModelSignature, TensorSignature
from core.errors import Unsupported
from core.inference.tensors import BY_ONNX_NAME, Shape

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
