"""The few fields of TensorFlow's messages that tell what a saved model is, so that it can be read without TensorFlow.

Source: tensorflow/core/protobuf/saved_model.proto and meta_graph.proto, framework/tensor_shape.proto and graph.proto.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "trident.tensorflow"

# Message, then its fields: name, number, type, and whether there may be many. A type that is not a number is a message;
# `map<string, T>` has the same bytes as many messages with the fields key and value.
_MESSAGES: dict[str, Sequence[tuple[str, int, int | str, bool]]] = {
    "Dim": [("size", 1, _Field.TYPE_INT64, False)],
    "Shape": [("dim", 2, "Dim", True), ("unknown_rank", 3, _Field.TYPE_BOOL, False)],
    "TensorInfo": [
        ("name", 1, _Field.TYPE_STRING, False),
        ("dtype", 2, _Field.TYPE_INT32, False),
        ("tensor_shape", 3, "Shape", False),
    ],
    "NamedTensor": [("key", 1, _Field.TYPE_STRING, False), ("value", 2, "TensorInfo", False)],
    "SignatureDef": [("inputs", 1, "NamedTensor", True), ("outputs", 2, "NamedTensor", True)],
    "NamedSignature": [("key", 1, _Field.TYPE_STRING, False), ("value", 2, "SignatureDef", False)],
    "MetaInfo": [("tags", 4, _Field.TYPE_STRING, True), ("tensorflow_version", 5, _Field.TYPE_STRING, False)],
    "MetaGraph": [("meta_info_def", 1, "MetaInfo", False), ("signature_def", 5, "NamedSignature", True)],
    "SavedModel": [("meta_graphs", 2, "MetaGraph", True)],
    "Node": [("name", 1, _Field.TYPE_STRING, False), ("op", 2, _Field.TYPE_STRING, False)],
    "GraphDef": [("node", 1, "Node", True)],
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="trident/tensorflow.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, many in fields:
            field = message.field.add(name=field_name, number=number)
            field.label = _Field.LABEL_REPEATED if many else _Field.LABEL_OPTIONAL
            if isinstance(kind, str):
                field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                field.type = kind  # type: ignore[assignment]  # the stubs want an enum that has no numbers
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


_CLASSES = _classes()
SavedModel = _CLASSES["SavedModel"]
GraphDef = _CLASSES["GraphDef"]
