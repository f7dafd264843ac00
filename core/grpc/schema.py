"""The messages of Triton's service, from the generated module that the `tritonclient` package ships.

As in `core.config.schema`, the module is loaded from its file, because importing `tritonclient.grpc` imports gRPC. Its
one import from that package is answered with the module of the model configurations. Import this module when a message
needs it: it imports protobuf.
Source: Triton's `grpc_service.proto`.
"""

from __future__ import annotations

import builtins
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from google.protobuf.message import DecodeError

from trident.core.config import schema as config_schema

__all__ = ["DecodeError", "service"]

_PACKAGE = "tritonclient.grpc"


def _import(name: str, *args: Any, **kwargs: Any) -> Any:
    if name == _PACKAGE:
        return SimpleNamespace(model_config_pb2=config_schema)
    return builtins.__import__(name, *args, **kwargs)


def _generated() -> Any:
    """The generated module: the imported one, or without it the one loaded from its file."""
    imported = sys.modules.get(f"{_PACKAGE}.service_pb2")
    if imported is not None:
        return imported
    package = importlib.util.find_spec("tritonclient")
    if package is None or not package.submodule_search_locations:
        raise ImportError("the package 'tritonclient' is missing: install trident-inference with its dependencies")
    path = Path(package.submodule_search_locations[0], "grpc", "service_pb2.py")
    module = ModuleType("trident.core.grpc.schema._service_pb2")
    module.__dict__["__builtins__"] = vars(builtins) | {"__import__": _import}
    exec(compile(path.read_bytes(), path, "exec"), module.__dict__)
    return module


service = _generated()
