"""The RPCs about models, their repository, shared memory and settings. The engine raises the lookup errors.

Source: docs/spec/grpc.md sections 1 and 5, docs/spec/trace-and-log.md sections 1 and 5, docs/spec/shared-memory.md
sections 2 to 5.
"""

from __future__ import annotations

from trident.core.errors import InvalidRequest
from trident.core.frontend.admin import (
    changed_settings,
    check_allowed,
    check_handle,
    check_ready,
    check_region_name,
    shown_settings,
    wanted_changes,
)
from trident.core.frontend.request import version_number
from trident.core.grpc.admin_messages import (
    cuda_status_message,
    index_message,
    log_message,
    model_config_message,
    model_metadata_message,
    model_statistics_message,
    read_cuda_register_call,
    read_index_call,
    read_load_call,
    read_log_call,
    read_model_query,
    read_region_name,
    read_system_register_call,
    read_trace_call,
    read_unload_call,
    server_metadata_message,
    system_status_message,
    trace_message,
)
from trident.core.grpc.front_end import GrpcFrontEnd
from trident.core.inference.tensors import Buffer
from trident.core.shared_memory.regions import RegionKind


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


# The engine raises the lookup errors. Source: docs/spec/grpc.md sections 1 and 5.


def server_metadata(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    return server_metadata_message(front_end.engine.server_metadata())


def model_metadata(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    name, version = read_model_query(message)
    return model_metadata_message(front_end.engine.model_metadata(name, version_number(version)))


def model_config(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    name, version = read_model_query(message)
    return model_config_message(front_end.engine.model_config(name, version_number(version)))


def model_statistics(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """The statistics of one model or, without a name, of all that are ready."""
    name, version = read_model_query(message)
    return model_statistics_message(front_end.engine.model_statistics(name, version_number(version)))


# All three access storage, so they run off the hub. The engine decides whether loading is allowed. Source:
# docs/spec/grpc.md section 5.


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


def system_status(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    return system_status_message(front_end.engine.system_regions(read_region_name(message)))


def cuda_status(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    return cuda_status_message(front_end.engine.cuda_regions(read_region_name(message)))


def system_register(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    check_allowed(allowed=front_end.options.allow_client_shm)
    call = read_system_register_call(message)
    check_region_name(call.name, RegionKind.SYSTEM.value)
    front_end.engine.register_system_region(*call)
    return _NOTHING


def cuda_register(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    check_allowed(allowed=front_end.options.allow_client_shm)
    call = read_cuda_register_call(message)
    check_region_name(call.name, RegionKind.CUDA.value)
    check_handle(call.handle)
    front_end.engine.register_cuda_region(*call)
    return _NOTHING


def system_unregister(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    return _unregister(front_end, RegionKind.SYSTEM, message)


def cuda_unregister(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    return _unregister(front_end, RegionKind.CUDA, message)


def _unregister(front_end: GrpcFrontEnd, kind: RegionKind, message: Buffer) -> bytes:
    check_allowed(allowed=front_end.options.allow_client_shm)
    front_end.engine.unregister_regions(kind, read_region_name(message))
    return _NOTHING


# Source: docs/spec/grpc.md section 5, docs/spec/trace-and-log.md section 1.


def trace_settings(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """The settings, after the changes of the call."""
    call = read_trace_call(message)
    run, engine = front_end.bridge.run, front_end.engine
    if call.model:
        check_ready(lambda: run(engine.is_model_ready, call.model), call.model)
    if call.settings:
        # An empty list clears a setting.
        wanted = {name: values or None for name, values in call.settings.items()}
        run(engine.change_trace, call.model, wanted_changes(wanted, _as_texts, _trace_settings_as_text, " "))
    return trace_message(run(engine.trace_settings, call.model))


def _as_texts(name: str, value: object) -> list[str]:
    assert isinstance(value, list)
    return value


def _trace_settings_as_text(name: str, value: object) -> str:
    assert isinstance(value, list)
    if len(value) != 1:
        raise InvalidRequest(f"expect only 1 value for '{name}'")
    text: str = value[0]
    return text
