"""Messages in protobuf's wire format: parsed with their schema, or written and cut without it.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import builtins
import importlib.util
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from trident.core.grpc.status import MalformedMessage
from trident.core.inference.tensors import Buffer

_PACKAGE: Final = "tritonclient.grpc"


@lru_cache(maxsize=1)
def service() -> Any:
    """The messages of Triton's service, `grpc_service.proto`: the generated module that `tritonclient` ships.

    The first call in a process imports protobuf, which takes tens of milliseconds. As in `core.config.schema`, the
    module is loaded from its file, because importing `tritonclient.grpc` imports gRPC. Its one import from that package
    is answered with the module of the model configurations.
    """
    from trident.core.config import schema as config_schema

    imported = sys.modules.get(f"{_PACKAGE}.service_pb2")
    if imported is not None:
        return imported
    package = importlib.util.find_spec("tritonclient")
    if package is None or not package.submodule_search_locations:
        raise ImportError("the package 'tritonclient' is missing: install trident-inference with its dependencies")
    path = Path(package.submodule_search_locations[0], "grpc", "service_pb2.py")

    def import_(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == _PACKAGE:
            return SimpleNamespace(model_config_pb2=config_schema)
        return builtins.__import__(name, *args, **kwargs)

    module = ModuleType("trident.core.grpc.protobuf._service_pb2")
    module.__dict__["__builtins__"] = vars(builtins) | {"__import__": import_}
    exec(compile(path.read_bytes(), path, "exec"), module.__dict__)
    return module


def parse(type_name: str, content: Buffer) -> Any:
    """The message of the type `type_name` of Triton's service. Raises MalformedMessage."""
    message_type = getattr(service(), type_name)
    from google.protobuf.message import DecodeError

    try:
        return message_type.FromString(content if type(content) is bytes else bytes(content))
    except DecodeError:
        raise MalformedMessage from None


def serialized(type_name: str, **fields: Any) -> bytes:
    """A message of the type `type_name` of Triton's service with these fields."""
    content: bytes = getattr(service(), type_name)(**fields).SerializeToString()
    return content


VARINT: Final = 0
LENGTH: Final = 2


def varint(number: int) -> bytes:
    """A number from 0 below 2^64."""
    if number < 128:
        return bytes((number,))
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


@lru_cache(maxsize=1024)
def length_prefix(number: int, size: int) -> bytes:
    """The prefix of the `size` bytes of field `number`."""
    return varint(number << 3 | LENGTH) + varint(size)


def length_field(number: int, content: bytes) -> bytes:
    """A field that is a message or bytes, also if it is empty."""
    return length_prefix(number, len(content)) + content


def string_field(number: int, text: str) -> bytes:
    """A string; nothing for an empty one, as proto3 has it. A lone surrogate becomes a question mark."""
    return length_field(number, text.encode("utf-8", "replace")) if text else b""


def integer_field(number: int, value: int) -> bytes:
    """An int64, uint64 or bool; nothing for 0, as proto3 has it."""
    return varint(number << 3 | VARINT) + varint(value & 0xFFFF_FFFF_FFFF_FFFF) if value else b""


def packed_integers(number: int, values: tuple[int, ...]) -> bytes:
    """A repeated int64; nothing without values."""
    return length_field(number, b"".join([varint(v & 0xFFFF_FFFF_FFFF_FFFF) for v in values])) if values else b""


def read_length(buffer: Buffer, at: int) -> tuple[int, int]:
    """The number that stands at `at`, below 2^35, and where it ends. Raises ValueError, IndexError at the end."""
    size = shift = 0
    while True:
        byte = buffer[at]
        at += 1
        size |= (byte & 127) << shift
        if byte < 128:
            return size, at
        shift += 7
        if shift > 28:
            raise ValueError("longer than any message")
