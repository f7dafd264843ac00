"""Disabled features: reads are answered as by a Triton with the feature off, changes are refused.

Source: docs/spec/grpc.md section 5, docs/spec/trace-and-log.md section 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import ModelNotFound
from core.frontend.fixed_settings import trace_change_refused
from core.grpc.messages.settings import read_trace_call, trace_message

if TYPE_CHECKING:
    from core.grpc.front_end import GrpcFrontEnd
    from core.inference.tensors import Buffer


def trace_setting(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """The settings, which are off. Of an unknown model there are none, and nothing is changed: so it is in Triton."""
    call = read_trace_call(message)
    if call.model and not _is_known(front_end, call.model):
        return trace_message({})
    if call.changes:
        raise trace_change_refused()
    return trace_message(front_end.options.trace_settings)


def _is_known(front_end: GrpcFrontEnd, model: str) -> bool:
    try:
        front_end.engine.is_model_ready(model)
    except ModelNotFound:
        return False
    return True
