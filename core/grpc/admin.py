"""The RPCs about models, their repository, shared memory and settings. The engine raises the lookup errors.

All of them run in greenlets, after protobuf was loaded. Source: docs/spec/grpc.md sections 1 and 5,
docs/spec/trace-and-log.md sections 1 and 5, docs/spec/shared-memory.md sections 2 to 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TypeVar

from trident.core.errors import InvalidRequest, readable
from trident.core.frontend.admin import (
    UNLOAD_PARAMETERS,
    changed_settings,
    check_allowed,
    check_handle,
    check_names,
    check_ready,
    check_region_name,
    model_statistics_json,
    refuse_repository,
    shown_settings,
    wanted_changes,
)
from trident.core.grpc.front_end import GrpcFrontEnd
from trident.core.grpc.messages import length_field, parse, serialized
from trident.core.inference.request import version_number
from trident.core.inference.tensors import Buffer
from trident.core.observability.statistics import VersionStatistics
from trident.core.shared_memory import CudaRegion, RegionKind, SystemRegion

T = TypeVar("T")

_CHOICE = "parameter_choice"
_NOTHING = b""


def server_metadata(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    return serialized("ServerMetadataResponse", **asdict(front_end.engine.server_metadata()))


def model_metadata(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    metadata = front_end.engine.model_metadata(*_named_model(message))
    return serialized(
        "ModelMetadataResponse",
        name=metadata.name,
        versions=list(map(str, metadata.versions)),
        platform=metadata.platform,
        inputs=list(map(asdict, metadata.inputs)),
        outputs=list(map(asdict, metadata.outputs)),
    )


def model_config(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    # A ModelConfigResponse has the configuration, which is a message already.
    return length_field(1, front_end.engine.model_config(*_named_model(message)).serialized)


def model_statistics(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """The statistics of one model or, without a name, of all that are ready."""
    return front_end.bridge.run(statistics_message, front_end.engine.model_statistics(*_named_model(message)))


def statistics_message(versions: Iterable[VersionStatistics]) -> bytes:
    """A ModelStatisticsResponse: the answer over HTTP without Trident's own fields."""
    shown = model_statistics_json(versions)["model_stats"]
    for version in shown:
        version.pop("batch_close_count")
        version.pop("bucket_stats", None)
    return serialized("ModelStatisticsResponse", model_stats=shown)


def _named_model(message: Buffer) -> tuple[str, int]:
    # The requests about a model have the same fields.
    query = parse("ModelReadyRequest", message)
    return query.name, version_number(query.version)


# --- the repository. All three access storage, so they run off the hub. The engine decides whether loading is allowed.


def index(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """The known models, or the ready ones."""
    call = parse("RepositoryIndexRequest", message)
    refuse_repository(call.repository_name)
    models = [
        {
            "name": readable(entry.name),
            "version": "" if entry.version is None else str(entry.version),
            "state": "" if entry.state is None else entry.state.value,
            "reason": readable(entry.reason),
        }
        for entry in front_end.bridge.run(front_end.engine.repository_index, call.ready)
    ]
    return serialized("RepositoryIndexResponse", models=models)


def load(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """Load the model; answers when it serves, or with the parameter `soon` at once."""
    call = parse("RepositoryModelLoadRequest", message)
    refuse_repository(call.repository_name)
    if call.parameters and all(key == "soon" for key in call.parameters):
        if call.parameters["soon"].WhichOneof(_CHOICE) != "bool_param":
            raise InvalidRequest("invalid value type for load parameter 'soon', expected bool_param.")
        if call.parameters["soon"].bool_param:
            front_end.engine.prefetch_model(call.model_name)
            return _NOTHING
        call.parameters.clear()
    parameters: dict[str, str | bytes] = {}
    for key, parameter in call.parameters.items():
        if key == "config":
            wanted = "string_param"
        elif key.startswith("file:"):
            wanted = "bytes_param"
        else:
            raise InvalidRequest(
                f"unrecognized load parameter '{key}'.",
                hint="the parameters are 'config' and 'file:PATH', or 'soon' alone",
            )
        if parameter.WhichOneof(_CHOICE) != wanted:
            raise InvalidRequest(f"invalid value type for load parameter '{key}', expected {wanted}.")
        parameters[key] = getattr(parameter, wanted)
    front_end.bridge.run_long(front_end.engine.load_model, call.model_name, parameters)
    return _NOTHING


def unload(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """Unload the model; answers when unloading has begun."""
    call = parse("RepositoryModelUnloadRequest", message)
    refuse_repository(call.repository_name)
    check_names("unload parameter", call.parameters, UNLOAD_PARAMETERS)
    parameter = call.parameters.get("unload_dependents")
    if parameter is not None and parameter.WhichOneof(_CHOICE) != "bool_param":
        raise InvalidRequest("invalid value type for 'unload_dependents' parameter, expected bool_param.")
    unload_dependents = parameter is not None and parameter.bool_param
    front_end.bridge.run(front_end.engine.unload_model, call.model_name, unload_dependents)
    return _NOTHING


# --- shared memory


def memory_status(kind: RegionKind, front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    engine, name = front_end.engine, _named_region(message)
    found: list[SystemRegion] | list[CudaRegion]
    found = engine.system_regions(name) if kind is RegionKind.SYSTEM else engine.cuda_regions(name)
    answer = f"{kind.value.capitalize()}SharedMemoryStatusResponse"
    return serialized(answer, regions={each.name: asdict(each) for each in found})


def system_register(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    check_allowed(allowed=front_end.options.allow_client_shm)
    call = parse("SystemSharedMemoryRegisterRequest", message)
    check_region_name(call.name, RegionKind.SYSTEM.value)
    front_end.engine.register_system_region(call.name, call.key, call.offset, call.byte_size)
    return _NOTHING


def cuda_register(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    check_allowed(allowed=front_end.options.allow_client_shm)
    call = parse("CudaSharedMemoryRegisterRequest", message)
    check_region_name(call.name, RegionKind.CUDA.value)
    check_handle(call.raw_handle)
    front_end.engine.register_cuda_region(call.name, call.raw_handle, call.device_id, call.byte_size)
    return _NOTHING


def unregister(kind: RegionKind, front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    check_allowed(allowed=front_end.options.allow_client_shm)
    front_end.engine.unregister_regions(kind, _named_region(message))
    return _NOTHING


def _named_region(message: Buffer) -> str:
    """The region that a request for a status or to unregister names, of either kind; "" for all."""
    # The four messages have the same one field.
    name: str = parse("SystemSharedMemoryStatusRequest", message).name
    return name


# --- settings


def trace_settings(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    call = parse("TraceSettingRequest", message)
    run, engine, model = front_end.bridge.run, front_end.engine, call.model_name
    if model:
        check_ready(lambda: run(engine.is_model_ready, model), model)
    if call.settings:
        # An empty list clears a setting.
        wanted = {name: list(given.value) or None for name, given in call.settings.items()}
        changes = wanted_changes(wanted, lambda: run(engine.trace_settings, model), _as_texts, _as_one_text, " ")
        run(engine.change_trace, model, changes)
    settings = {
        name: {"value": [readable(str(text)) for text in (value if isinstance(value, list) else [value])]}
        for name, value in run(engine.trace_settings, model).items()
    }
    return serialized("TraceSettingResponse", settings=settings)


def _as_texts(name: str, value: object) -> list[str]:
    assert isinstance(value, list)
    return value


def _as_one_text(name: str, value: object) -> str:
    assert isinstance(value, list)
    if len(value) != 1:
        raise InvalidRequest(f"expect only 1 value for '{name}'")
    text: str = value[0]
    return text


def log_settings(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    given = parse("LogSettingsRequest", message).settings
    kinds = {name: value.WhichOneof(_CHOICE) for name, value in given.items()}
    wanted = {name: None if kind is None else getattr(given[name], kind) for name, kind in kinds.items()}
    kinds_read = _of_type(bool, "boolean"), _of_type(int, "int32"), _of_type(str, "string")
    for levels in changed_settings(wanted, *kinds_read, before_name=""):
        front_end.bridge.run(front_end.engine.change_log, levels)
    return serialized("LogSettingsResponse", settings={name: _shown(value) for name, value in shown_settings().items()})


def _shown(value: object) -> dict[str, object]:
    if isinstance(value, bool):
        return {"bool_param": value}
    return {"uint32_param": value} if isinstance(value, int) else {"string_param": readable(str(value))}


def _of_type(kind: type[T], words: str) -> Callable[[str, object], T]:
    """Return a function that takes a setting's name and value, which is a `kind`. It raises InvalidRequest."""

    def read(name: str, value: object) -> T:
        if type(value) is not kind:
            raise InvalidRequest(f"expect {words} for '{name}'")
        return value

    return read
