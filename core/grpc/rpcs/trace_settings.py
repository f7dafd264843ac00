"""TraceSetting: the trace settings of the server and of models, read and changed while the server runs.

Source: docs/spec/grpc.md section 5, docs/spec/trace-and-log.md section 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import InvalidRequest, ModelNotFound, ModelNotReady
from core.frontend.trace_settings import wanted_changes
from core.grpc.messages.settings import read_trace_call, trace_message

if TYPE_CHECKING:
    from core.grpc.front_end import GrpcFrontEnd
    from core.inference.tensors import Buffer


def trace_settings(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """The settings, after the changes of the call. Of an unknown model there are none, and nothing is changed: so it is
    in Triton.
    """
    call = read_trace_call(message)
    run, engine = front_end.bridge.run, front_end.engine
    if call.model:
        try:
            is_ready = run(engine.is_model_ready, call.model)
        except (ModelNotFound, ModelNotReady):
            is_ready = False
        if not is_ready:
            return trace_message({})
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
