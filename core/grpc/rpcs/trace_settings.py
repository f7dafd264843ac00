"""TraceSetting: the trace settings of the server and of models, read and changed while the server runs.

Source: docs/spec/grpc.md section 5, docs/spec/trace-and-log.md section 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import InvalidRequest
from core.frontend.trace_settings import check_ready, wanted_changes
from core.grpc.messages.settings import read_trace_call, trace_message

if TYPE_CHECKING:
    from core.grpc.front_end import GrpcFrontEnd
    from core.inference.tensors import Buffer


def trace_settings(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """The settings, after the changes of the call."""
    call = read_trace_call(message)
    run, engine = front_end.bridge.run, front_end.engine
    if call.model:
        check_ready(lambda: run(engine.is_model_ready, call.model), call.model)
    if call.settings:
        # An empty list clears a setting.
        wanted = {name: values or None for name, values in call.settings.items()}
        run(engine.change_trace, call.model, wanted_changes(wanted, _as_texts, _as_text, " "))
    return trace_message(run(engine.trace_settings, call.model))


def _as_texts(name: str, value: object) -> list[str]:
    assert isinstance(value, list)
    return value


def _as_text(name: str, value: object) -> str:
    assert isinstance(value, list)
    if len(value) != 1:
        raise InvalidRequest(f"expect only 1 value for '{name}'")
    text: str = value[0]
    return text
