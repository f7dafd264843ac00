"""The calls of the model repository: index, load, unload.

Source: docs/spec/grpc.md sections 1 and 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from trident.core.engine.protocol import ConfigMessage, ModelMetadata, ServerMetadata, TensorMetadata
from trident.core.errors import InvalidRequest
from trident.core.frontend.admin import Duration, model_statistics_json, refuse_repository
from trident.core.grpc.protobuf import integer_field, length_field, packed_integers, parse, string_field, varint
from trident.core.inference.tensors import Buffer
from trident.core.lifecycle.state import IndexEntry
from trident.core.observability.statistics import VersionStatistics
from trident.core.shared_memory.regions import CudaRegion, SystemRegion

# The values of grpc.health.v1.HealthCheckResponse.ServingStatus.
SERVING = 1
NOT_SERVING = 2


def flag_message(value: bool) -> bytes:
    """A ServerLiveResponse, ServerReadyResponse or ModelReadyResponse."""
    return integer_field(1, int(value))


def health_message(ready: bool) -> bytes:
    """A grpc.health.v1.HealthCheckResponse."""
    return integer_field(1, SERVING if ready else NOT_SERVING)


# Source: docs/spec/grpc.md section 1.


def server_metadata_message(metadata: ServerMetadata) -> bytes:
    """A ServerMetadataResponse."""
    extensions = [length_field(3, extension.encode()) for extension in metadata.extensions]
    return string_field(1, metadata.name) + string_field(2, metadata.version) + b"".join(extensions)


def model_metadata_message(metadata: ModelMetadata) -> bytes:
    """A ModelMetadataResponse."""
    versions = [length_field(2, str(version).encode()) for version in metadata.versions]
    inputs = [length_field(4, _tensor(tensor)) for tensor in metadata.inputs]
    outputs = [length_field(5, _tensor(tensor)) for tensor in metadata.outputs]
    name, platform = string_field(1, metadata.name), string_field(3, metadata.platform)
    return b"".join([name, *versions, platform, *inputs, *outputs])


def model_config_message(config: ConfigMessage) -> bytes:
    """A ModelConfigResponse."""
    return length_field(1, config.serialized)


def _tensor(tensor: TensorMetadata) -> bytes:
    return string_field(1, tensor.name) + string_field(2, tensor.datatype) + packed_integers(3, tensor.shape)


class ModelQuery(NamedTuple):
    """`version` is the text that the client sent, empty for the latest, or for all."""

    name: str
    version: str


def read_model_query(content: Buffer) -> ModelQuery:
    """Read a ModelReadyRequest, ModelMetadataRequest, ModelConfigRequest or ModelStatisticsRequest, which have the
    same fields. Raises MalformedMessage."""
    message = parse("ModelReadyRequest", content)
    return ModelQuery(message.name, message.version)


_FILE_PREFIX = "file:"
_CHOICE = "parameter_choice"


class LoadCall(NamedTuple):
    """The model to load, and the parameters as `Engine.load_model` takes them."""

    model: str
    parameters: dict[str, str | bytes]


class UnloadCall(NamedTuple):
    model: str
    unload_dependents: bool


def read_index_call(content: Buffer) -> bool:
    """Whether a RepositoryIndexRequest asks for the ready models only. Raises MalformedMessage, Unsupported."""
    message = parse("RepositoryIndexRequest", content)
    refuse_repository(message.repository_name)
    ready: bool = message.ready
    return ready


def read_load_call(content: Buffer) -> LoadCall:
    """Read a RepositoryModelLoadRequest. Raises MalformedMessage, Unsupported, InvalidRequest."""
    message = parse("RepositoryModelLoadRequest", content)
    refuse_repository(message.repository_name)
    parameters: dict[str, str | bytes] = {}
    for key, parameter in message.parameters.items():
        if key == "config":
            parameters[key] = _value(key, parameter, "string_param")
        elif key.startswith(_FILE_PREFIX):
            parameters[key] = _value(key, parameter, "bytes_param")
        else:
            raise InvalidRequest(
                f"unrecognized load parameter '{key}'.", hint="the parameters are 'config' and 'file:PATH'"
            )
    return LoadCall(message.model_name, parameters)


def read_unload_call(content: Buffer) -> UnloadCall:
    """Read a RepositoryModelUnloadRequest; parameters that it does not know are ignored. Raises MalformedMessage,
    Unsupported, InvalidRequest."""
    message = parse("RepositoryModelUnloadRequest", content)
    refuse_repository(message.repository_name)
    parameter = message.parameters.get("unload_dependents")
    if parameter is None:
        return UnloadCall(message.model_name, False)
    if parameter.WhichOneof(_CHOICE) != "bool_param":
        raise InvalidRequest("invalid value type for 'unload_dependents' parameter, expected bool_param.")
    return UnloadCall(message.model_name, parameter.bool_param)


def index_message(entries: Iterable[IndexEntry]) -> bytes:
    """A RepositoryIndexResponse."""
    return b"".join([length_field(1, _entry(entry)) for entry in entries])


def _entry(entry: IndexEntry) -> bytes:
    version = "" if entry.version is None else str(entry.version)
    state = "" if entry.state is None else entry.state.value
    texts = (entry.name, version, state, entry.reason)
    return b"".join([string_field(number, text) for number, text in enumerate(texts, 1)])


def _value(key: str, parameter: Any, wanted: str) -> Any:
    if parameter.WhichOneof(_CHOICE) != wanted:
        raise InvalidRequest(f"invalid value type for load parameter '{key}', expected {wanted}.")
    return getattr(parameter, wanted)


# Source: docs/spec/grpc.md sections 1 and 5, docs/spec/trace-and-log.md sections 1 and 5.


class TraceCall(NamedTuple):
    """The model whose settings are meant, "" for the server's, and the values of those that the call changes."""

    model: str
    settings: dict[str, list[str]]


def read_trace_call(content: Buffer) -> TraceCall:
    """Read a TraceSettingRequest. Raises MalformedMessage."""
    message = parse("TraceSettingRequest", content)
    return TraceCall(message.model_name, {name: list(given.value) for name, given in message.settings.items()})


def read_log_call(content: Buffer) -> dict[str, object]:
    """The settings of a LogSettingsRequest that have a value, a flag, a number or a text. Raises MalformedMessage."""
    settings = parse("LogSettingsRequest", content).settings
    kinds = {name: value.WhichOneof("parameter_choice") for name, value in settings.items()}
    return {name: getattr(settings[name], kind) for name, kind in kinds.items() if kind is not None}


def trace_message(settings: Mapping[str, object]) -> bytes:
    """A TraceSettingResponse. A setting is a text, or a list of texts."""
    return _map({key: _texts(value) for key, value in settings.items()})


def log_message(settings: Mapping[str, object]) -> bytes:
    """A LogSettingsResponse. A setting is a flag, a number from 0, or a text."""
    return _map({key: _log_value(value) for key, value in settings.items()})


def _map(values: Mapping[str, bytes]) -> bytes:
    return b"".join([length_field(1, string_field(1, key) + length_field(2, value)) for key, value in values.items()])


def _texts(value: object) -> bytes:
    texts = value if isinstance(value, list) else [value]
    return b"".join([length_field(1, str(text).encode()) for text in texts])


def _log_value(value: object) -> bytes:
    # The fields of a `oneof` are written though they have their default value.
    if isinstance(value, bool):
        return bytes((1 << 3, value))
    if isinstance(value, int):
        return bytes((2 << 3,)) + varint(value)
    return length_field(3, str(value).encode())


# Source: docs/spec/grpc.md section 1, docs/spec/shared-memory.md section 2.


class SystemRegisterCall(NamedTuple):
    """The arguments of `Engine.register_system_region`."""

    name: str
    key: str
    offset: int
    byte_size: int


class CudaRegisterCall(NamedTuple):
    """The arguments of `Engine.register_cuda_region`."""

    name: str
    handle: bytes
    device_id: int
    byte_size: int


def read_region_name(content: Buffer) -> str:
    """The region that a request for a status or to unregister names, of either kind; "" for all.

    Raises MalformedMessage.
    """
    # The four messages have the same one field.
    name: str = parse("SystemSharedMemoryStatusRequest", content).name
    return name


def read_system_register_call(content: Buffer) -> SystemRegisterCall:
    """Read a SystemSharedMemoryRegisterRequest. Raises MalformedMessage."""
    message = parse("SystemSharedMemoryRegisterRequest", content)
    return SystemRegisterCall(message.name, message.key, message.offset, message.byte_size)


def read_cuda_register_call(content: Buffer) -> CudaRegisterCall:
    """Read a CudaSharedMemoryRegisterRequest. Raises MalformedMessage."""
    message = parse("CudaSharedMemoryRegisterRequest", content)
    return CudaRegisterCall(message.name, message.raw_handle, message.device_id, message.byte_size)


def system_status_message(regions: Iterable[SystemRegion]) -> bytes:
    """A SystemSharedMemoryStatusResponse."""
    return b"".join(
        [
            _region_entry(
                each.name,
                string_field(2, each.key) + integer_field(3, each.offset) + integer_field(4, each.byte_size),
            )
            for each in regions
        ]
    )


def cuda_status_message(regions: Iterable[CudaRegion]) -> bytes:
    """A CudaSharedMemoryStatusResponse."""
    return b"".join(
        [
            _region_entry(each.name, integer_field(2, each.device_id) + integer_field(3, each.byte_size))
            for each in regions
        ]
    )


def _region_entry(name: str, rest: bytes) -> bytes:
    """An entry of the map of regions, which is also called `name` in its value."""
    return length_field(1, string_field(1, name) + length_field(2, string_field(1, name) + rest))


# Source: docs/spec/grpc.md section 1, docs/spec/statistics-and-metrics.md section A.


# The fields of InferStatistics, InferBatchStatistics and InferResponseStatistics by their names in JSON.
_INFER = {
    "success": 1,
    "fail": 2,
    "queue": 3,
    "compute_input": 4,
    "compute_infer": 5,
    "compute_output": 6,
    "cache_hit": 7,
    "cache_miss": 8,
}
_BATCH = {"compute_input": 2, "compute_infer": 3, "compute_output": 4}
_RESPONSE = {"compute_infer": 1, "compute_output": 2, "success": 3, "fail": 4, "empty_response": 5, "cancel": 6}


def model_statistics_message(versions: Iterable[VersionStatistics]) -> bytes:
    """A ModelStatisticsResponse."""
    return b"".join([length_field(1, _version(v)) for v in model_statistics_json(versions)["model_stats"]])


def _version(version: Mapping[str, Any]) -> bytes:
    fields = [
        string_field(1, version["name"]),
        string_field(2, version["version"]),
        integer_field(3, version["last_inference"]),
        integer_field(4, version["inference_count"]),
        integer_field(5, version["execution_count"]),
        length_field(6, _durations(version["inference_stats"], _INFER)),
    ]
    for batch in version["batch_stats"]:
        fields.append(length_field(7, integer_field(1, batch["batch_size"]) + _durations(batch, _BATCH)))
    for memory in version["memory_usage"]:
        usage = string_field(1, memory["type"]) + integer_field(2, memory["id"]) + integer_field(3, memory["byte_size"])
        fields.append(length_field(8, usage))
    for index, response in version["response_stats"].items():
        fields.append(length_field(9, string_field(1, index) + length_field(2, _durations(response, _RESPONSE))))
    return b"".join(fields)


def _durations(durations: Mapping[str, Duration], fields: Mapping[str, int]) -> bytes:
    return b"".join([length_field(number, _duration(durations[name])) for name, number in fields.items()])


def _duration(duration: Duration) -> bytes:
    return integer_field(1, duration["count"]) + integer_field(2, duration["ns"])
