"""Health of the server and readiness of a model. None of it but the model's readiness can wait.

Source: docs/spec/grpc.md section 2; grpc.health.v1's `health.proto`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import InvalidRequest, ModelNotFound, ModelNotReady, ServerStopping
from core.frontend.version_text import version_number
from core.grpc.messages.health import flag_message, health_message
from core.grpc.messages.model_query import read_model_query
from core.lifecycle.serving_phase import Phase

if TYPE_CHECKING:
    from core.grpc.front_end import GrpcFrontEnd
    from core.inference.tensors import Buffer


def server_live(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    live = front_end.engine.is_live()
    if not live:
        _refuse_exiting(front_end)
    return flag_message(live)


def server_ready(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    ready = front_end.engine.is_ready()
    if not ready:
        _refuse_exiting(front_end)
    return flag_message(ready)


def model_ready(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """Whether a version is loaded and can serve now; a model that cannot be found is not ready, and no error."""
    name, version_text = read_model_query(message)
    version = version_number(version_text)
    try:
        is_ready = front_end.engine.is_model_ready(name, version)
    except (ModelNotFound, ModelNotReady, InvalidRequest):  # the lookup errors of `Engine.model`
        is_ready = False
    return flag_message(is_ready)


def check(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """Whatever service it asks for: the answer is about the server."""
    ready = front_end.engine.is_ready()
    if not ready:
        _refuse_exiting(front_end)
    return health_message(ready)


def _refuse_exiting(front_end: GrpcFrontEnd) -> None:
    if front_end.engine.phase().name == Phase.EXITING:
        raise ServerStopping("Server exiting")
