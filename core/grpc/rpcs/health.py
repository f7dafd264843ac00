"""Health of the server and readiness of a model. None of it but the model's readiness can wait.

Source: docs/spec/grpc.md section 2; grpc.health.v1's `health.proto`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import ServerStopping
from core.lifecycle.serving_phase import Phase

if TYPE_CHECKING:
    from core.grpc.front_end import GrpcFrontEnd
    from core.inference.tensors import Buffer

# Messages whose field 1 is a bool, or the enum of the health service.
TRUE = b"\x08\x01"
FALSE = b""
SERVING = b"\x08\x01"
NOT_SERVING = b"\x08\x02"


def server_live(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    if front_end.engine.is_live():
        return TRUE
    _refuse_exiting(front_end)
    return FALSE


def server_ready(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    if front_end.engine.is_ready():
        return TRUE
    _refuse_exiting(front_end)
    return FALSE


def check(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """Whatever service it asks for: the answer is about the server."""
    if front_end.engine.is_ready():
        return SERVING
    _refuse_exiting(front_end)
    return NOT_SERVING


def _refuse_exiting(front_end: GrpcFrontEnd) -> None:
    if front_end.engine.phase().name == Phase.EXITING:
        raise ServerStopping("Server exiting")
