"""The bytes of a request as a message of its type."""

from __future__ import annotations

from typing import Any

from core.grpc.errors import MalformedMessage
from core.inference.tensors import Buffer


def message_of(type_name: str, content: Buffer) -> Any:
    """The message of the type `type_name` of Triton's service. Raises MalformedMessage.

    The first call in a process imports protobuf, which takes tens of milliseconds.
    """
    from core.grpc.messages import schema

    try:
        return getattr(schema, type_name).FromString(content if type(content) is bytes else bytes(content))
    except schema.DecodeError:
        raise MalformedMessage from None
