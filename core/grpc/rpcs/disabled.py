"""Disabled features: reads are answered as by a Triton with the feature off, changes are refused.

Source: docs/spec/grpc.md section 5, docs/spec/shared-memory.md sections 1 to 4, docs/spec/trace-and-log.md section
1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import ModelNotFound
from core.frontend.fixed_settings import trace_change_refused
from core.frontend.shared_memory import change_refused, unknown_region_of
from core.grpc.messages.settings import read_trace_call, trace_message
from core.grpc.messages.shared_memory import NO_REGIONS, read_status_call

if TYPE_CHECKING:
    from core.grpc.front_end import GrpcFrontEnd
    from core.inference.tensors import Buffer


def system_shared_memory_status(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    return _status("system", message)


def cuda_shared_memory_status(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    return _status("cuda", message)


def shared_memory_change(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    raise change_refused()


def trace_setting(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """The settings, which are off. Of an unknown model there are none, and nothing is changed: so it is in Triton."""
    call = read_trace_call(message)
    if call.model and not _is_known(front_end, call.model):
        return trace_message({})
    if call.changes:
        raise trace_change_refused()
    return trace_message(front_end.options.trace_settings)


def _status(kind: str, message: Buffer) -> bytes:
    """No region can be registered: there are none, and every name is unknown."""
    region = read_status_call(message)
    if region:
        raise unknown_region_of(kind, region)
    return NO_REGIONS


def _is_known(front_end: GrpcFrontEnd, model: str) -> bool:
    try:
        front_end.engine.is_model_ready(model)
    except ModelNotFound:
        return False
    return True
