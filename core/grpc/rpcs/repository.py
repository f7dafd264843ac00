"""The model repository: index, load, unload.

All three access storage, so they run off the hub. The engine decides whether loading is allowed.
Source: docs/spec/grpc.md section 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.grpc.messages.repository import index_message, read_index_call, read_load_call, read_unload_call

if TYPE_CHECKING:
    from core.grpc.front_end import GrpcFrontEnd
    from core.inference.tensors import Buffer

_NOTHING = b""


def index(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """The known models, or the ready ones."""
    ready_only = read_index_call(message)
    return index_message(front_end.bridge.run(front_end.engine.repository_index, ready_only))


def load(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """Load the model; answers when it serves."""
    call = read_load_call(message)
    front_end.bridge.run_long(front_end.engine.load_model, call.model, call.parameters)
    return _NOTHING


def unload(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """Unload the model; answers when unloading has begun."""
    call = read_unload_call(message)
    front_end.bridge.run(front_end.engine.unload_model, call.model, call.unload_dependents)
    return _NOTHING
