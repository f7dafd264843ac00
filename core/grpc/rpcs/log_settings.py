"""LogSettings: the settings of the log, read and changed while the server runs.

Source: docs/spec/grpc.md section 5, docs/spec/trace-and-log.md section 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import InvalidRequest
from core.frontend.log_settings import changed_settings, shown_settings
from core.grpc.messages.settings import log_message, read_log_call

if TYPE_CHECKING:
    from core.grpc.front_end import GrpcFrontEnd
    from core.inference.tensors import Buffer


def log_settings(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """The settings, after the changes of the call."""
    for levels in changed_settings(read_log_call(message), _as_bool, _as_integer, _as_text):
        front_end.bridge.run(front_end.engine.change_log, levels)
    return log_message(shown_settings())


def _as_bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"expect boolean for '{name}'")
    return value


def _as_integer(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"expect int32 for '{name}'")
    return value


def _as_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"expect string for '{name}'")
    return value
