"""The messages of the administrative RPCs."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format
from tritonclient.grpc import service_pb2
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import (
    LogSettingsRequest,
    LogSettingsResponse,
    ModelConfigResponse,
    ModelMetadataResponse,
    ModelStatisticsResponse,
    RepositoryIndexRequest,
    RepositoryIndexResponse,
    RepositoryModelLoadRequest,
    RepositoryModelUnloadRequest,
    ServerMetadataResponse,
    TraceSettingRequest,
    TraceSettingResponse,
)

from tests.unit.core.grpc.codec_messages import spec
from trident.core.engine.protocol import ConfigMessage, ServerMetadata, model_metadata
from trident.core.errors import InvalidRequest, Unsupported
from trident.core.frontend.admin import model_statistics_json, shown_settings
from trident.core.grpc.admin_messages import (
    LoadCall,
    ModelQuery,
    TraceCall,
    UnloadCall,
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
from trident.core.lifecycle.state import IndexEntry, ModelState
from trident.core.observability.statistics import (
    BatchStatistics,
    FailureReason,
    ResponseStatistics,
    StatisticsSnapshot,
    VersionStatistics,
)
from trident.core.observability.tracing.settings import TraceOptions
from trident.core.observability.tracing.tracer import Tracer
from trident.core.shared_memory.regions import CudaRegion, SystemRegion

BATCH = BatchStatistics(
    batch_size=4, execution_count=2, compute_input_ns=10, compute_infer_ns=2**40, compute_output_ns=0
)
SNAPSHOT = StatisticsSnapshot(
    request_success=7,
    request_failures={FailureReason.BACKEND: 2, FailureReason.OTHER: 1},
    inference_count=8,
    execution_count=2,
    request_ns=1000,
    queue_ns=300,
    compute_input_ns=1,
    compute_infer_ns=2,
    compute_output_ns=3,
    pending=0,
    failure_ns=77,
    last_inference_ms=1795197950786,
    batches=(BATCH,),
    responses=(ResponseStatistics(index=0, counts=(3, 1, 0, 2), durations_ns=(30, 10, 0, 2**40)),),
)


def test_the_statistics_are_those_that_http_answers_as_far_as_the_message_has_them() -> None:
    versions = [VersionStatistics(name="m", version=n, statistics=SNAPSHOT, memory_bytes=n << 33) for n in (0, 1, 2)]
    message = ModelStatisticsResponse.FromString(model_statistics_message(versions))
    assert message == json_format.ParseDict(
        model_statistics_json(versions), ModelStatisticsResponse(), ignore_unknown_fields=True
    )
    assert [sum(usage.byte_size for usage in each.memory_usage) for each in message.model_stats] == [
        0,
        1 << 33,
        2 << 33,
    ]
    first = message.model_stats[0]
    assert (first.inference_stats.fail.count, first.inference_stats.fail.ns) == (3, 77)
    assert first.inference_stats.HasField("cache_hit")
    assert first.batch_stats[0].compute_infer.ns == 2**40
    assert first.response_stats["0"].cancel.ns == 2**40


MOST = 2**64 - 1


@pytest.mark.parametrize("kind", ["System", "Cuda"])
@pytest.mark.parametrize("action", ["Status", "Unregister"])
def test_the_region_that_a_call_names(kind: str, action: str) -> None:
    request: Any = getattr(service_pb2, f"{kind}SharedMemory{action}Request")(name="r")
    assert read_region_name(request.SerializeToString()) == "r"
    assert read_region_name(b"") == ""


def test_the_register_calls() -> None:
    system = service_pb2.SystemSharedMemoryRegisterRequest(name="r", key="/k", offset=MOST, byte_size=MOST)
    assert read_system_register_call(system.SerializeToString()) == ("r", "/k", MOST, MOST)
    cuda = service_pb2.CudaSharedMemoryRegisterRequest(name="r", raw_handle=b"h", device_id=-1, byte_size=8)
    assert read_cuda_register_call(cuda.SerializeToString()) == ("r", b"h", -1, 8)


def test_the_statuses() -> None:
    regions = [
        SystemRegion(name="a", key="/k", offset=0, byte_size=MOST),
        SystemRegion(name="größer", key="/l", offset=4096, byte_size=1),
    ]
    system: Any = service_pb2.SystemSharedMemoryStatusResponse.FromString(system_status_message(regions))
    shown = {name: (each.name, each.key, each.offset, each.byte_size) for name, each in system.regions.items()}
    assert shown == {"a": ("a", "/k", 0, MOST), "größer": ("größer", "/l", 4096, 1)}
    cuda: Any = service_pb2.CudaSharedMemoryStatusResponse.FromString(
        cuda_status_message([CudaRegion(name="c", device_id=3, byte_size=64)])
    )
    assert {name: (each.name, each.device_id, each.byte_size) for name, each in cuda.regions.items()} == {
        "c": ("c", 3, 64)
    }
    assert system_status_message([]) == cuda_status_message([]) == b""


@pytest.mark.parametrize("rpc", ["ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"])
def test_the_requests_about_a_model_have_the_same_fields(rpc: str) -> None:
    message: Any = getattr(service_pb2, f"{rpc}Request")(name="m", version="2")
    assert read_model_query(message.SerializeToString()) == ModelQuery("m", "2")
    assert read_model_query(b"") == ModelQuery("", "")


def load_call(**fields: Any) -> LoadCall:
    return read_load_call(RepositoryModelLoadRequest(**fields).SerializeToString())


def test_the_index_of_all_or_of_the_ready_models() -> None:
    assert read_index_call(RepositoryIndexRequest(ready=True).SerializeToString())
    assert not read_index_call(b"")


def test_the_parameters_of_a_load() -> None:
    parameters = {"config": {"string_param": "{}"}, "file:1/model.onnx": {"bytes_param": b"\xff"}}
    call = load_call(model_name="m", parameters=parameters)
    assert call == LoadCall("m", {"config": "{}", "file:1/model.onnx": b"\xff"})
    assert load_call(model_name="m") == LoadCall("m", {})


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("config", {"bytes_param": b"{}"}, "invalid value type for load parameter 'config', expected string_param."),
        ("file:1/a", {"string_param": ""}, "invalid value type for load parameter 'file:1/a', expected bytes_param."),
        ("other", {"bool_param": True}, "unrecognized load parameter 'other'."),
        ("config", {}, "invalid value type for load parameter 'config', expected string_param."),
    ],
)
def test_a_wrong_parameter_of_a_load(key: str, value: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        load_call(model_name="m", parameters={key: value})
    assert str(refusal.value) == text


def test_the_parameters_of_an_unload() -> None:
    def call(**parameters: Any) -> UnloadCall:
        message = RepositoryModelUnloadRequest(model_name="m", parameters=parameters)
        return read_unload_call(message.SerializeToString())

    assert call() == call(other={"int64_param": 1}) == UnloadCall("m", False)
    assert call(unload_dependents={"bool_param": True}) == UnloadCall("m", True)
    with pytest.raises(InvalidRequest, match="invalid value type for 'unload_dependents' parameter, expected bool_p"):
        call(unload_dependents={"string_param": "true"})


@pytest.mark.parametrize(
    ("message", "read"),
    [
        (RepositoryIndexRequest(repository_name="r"), read_index_call),
        (RepositoryModelLoadRequest(repository_name="r"), read_load_call),
        (RepositoryModelUnloadRequest(repository_name="r"), read_unload_call),
    ],
)
def test_repositories_have_no_names(message: Any, read: Any) -> None:
    with pytest.raises(Unsupported, match="'repository_name' specification is not supported"):
        read(message.SerializeToString())


def test_the_index() -> None:
    entries = [
        IndexEntry(name="a", version=1, state=ModelState.READY),
        IndexEntry(name="b", version=2, state=ModelState.UNAVAILABLE, reason="it broke"),
        IndexEntry(name="c"),
    ]
    models = RepositoryIndexResponse.FromString(index_message(entries)).models
    assert [(m.name, m.version, m.state, m.reason) for m in models] == [
        ("a", "1", "READY", ""),
        ("b", "2", "UNAVAILABLE", "it broke"),
        ("c", "", "", ""),
    ]


def test_the_metadata_of_the_server() -> None:
    metadata = ServerMetadata(name="triton", version="1.2", extensions=("a", "b"))
    wanted = ServerMetadataResponse(name="triton", version="1.2", extensions=["a", "b"])
    assert server_metadata_message(metadata) == wanted.SerializeToString()


def test_the_metadata_of_a_model() -> None:
    message = ModelMetadataResponse.FromString(model_metadata_message(model_metadata(spec(), [1, 3])))
    assert (message.name, list(message.versions), message.platform) == ("simple", ["1", "3"], "onnxruntime_onnx")
    assert [(t.name, t.datatype, list(t.shape)) for t in message.inputs] == [
        ("INPUT0", "INT32", [-1, 16]),
        ("INPUT1", "INT32", [-1, 16]),
    ]
    assert [t.name for t in message.outputs] == ["OUTPUT0", "OUTPUT1"]


def test_the_configuration_of_a_model() -> None:
    for config in (ModelConfig(name="m", max_batch_size=8), ModelConfig()):
        message = ModelConfigResponse.FromString(model_config_message(ConfigMessage.of(config)))
        assert message.HasField("config")
        assert message.config == config


def test_a_call_may_change_settings_or_only_read_them() -> None:
    assert read_trace_call(b"") == TraceCall("", {})
    change = TraceSettingRequest(model_name="m", settings={"trace_level": {"value": []}})
    assert read_trace_call(change.SerializeToString()) == TraceCall("m", {"trace_level": []})
    assert read_log_call(b"") == {}
    values = {"log_info": {"bool_param": False}, "log_verbose_level": {"uint32_param": 0}, "log_format": {}}
    assert read_log_call(LogSettingsRequest(settings=values).SerializeToString()) == {
        "log_info": False,
        "log_verbose_level": 0,
    }


def test_the_settings_of_trace() -> None:
    settings = TraceSettingResponse.FromString(trace_message(Tracer(TraceOptions()).settings())).settings
    assert {key: list(setting.value) for key, setting in settings.items()} == {
        "trace_level": ["OFF"],
        "trace_rate": ["1000"],
        "trace_count": ["-1"],
        "log_frequency": ["0"],
        "trace_file": [""],
        "trace_mode": ["triton"],
    }


def test_the_settings_of_the_log_have_their_types() -> None:
    shown = shown_settings()
    settings = LogSettingsResponse.FromString(log_message(shown)).settings
    choices = {key: setting.WhichOneof("parameter_choice") for key, setting in settings.items()}
    assert choices == {
        "log_file": "string_param",
        "log_info": "bool_param",
        "log_warning": "bool_param",
        "log_error": "bool_param",
        "log_verbose_level": "uint32_param",
        "log_format": "string_param",
    }
    assert {key: getattr(settings[key], choices[key]) for key in choices} == shown
