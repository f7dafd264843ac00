"""The unary RPCs, as a client calls them, and the health watch. The contract tests have the texts of errors."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2
from tritonclient.grpc import service_pb2 as pb

from tests.unit.core.grpc.grpc_client import ClientStream, frame, on_hub, serve
from tests.unit.core.waiting.hub_thread import until
from tests.unit.fake_engine import FakeEngine
from trident.core.errors import ModelLoadFailed
from trident.core.frontend.admin import model_statistics_json
from trident.core.grpc.admin import statistics_message
from trident.core.grpc.application import methods
from trident.core.grpc.front_end import GrpcOptions
from trident.core.lifecycle.state import Phase, ServingPhase
from trident.core.observability.statistics import (
    BatchStatistics,
    FailureReason,
    ResponseStatistics,
    StatisticsSnapshot,
    VersionStatistics,
)
from trident.core.shared_memory import CudaRegion, RegionKind

CHECK = "/grpc.health.v1.Health/Check"


INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 3, 5, 12, 13, 14


def test_every_method_belongs_to_the_group_that_restrictions_name() -> None:
    groups: dict[str, set[str]] = {}
    for method in methods(reflection=False):
        groups.setdefault(method.group, set()).add(method.name)
    assert groups == {
        "inference": {"ModelInfer", "ModelStreamInfer"},
        "health": {"ServerLive", "ServerReady", "ModelReady", "Check", "Watch"},
        "metadata": {"ServerMetadata", "ModelMetadata"},
        "model-config": {"ModelConfig"},
        "statistics": {"ModelStatistics"},
        "model-repository": {"RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"},
        "shared-memory": {
            f"{kind}SharedMemory{verb}" for kind in ("System", "Cuda") for verb in ("Status", "Register", "Unregister")
        },
        "trace": {"TraceSetting"},
        "logging": {"LogSettings"},
    }


def called(engine: FakeEngine, method: str, request: Any) -> ClientStream:
    """A call after its end."""
    seen: list[ClientStream] = []
    content = request if isinstance(request, bytes) else request.SerializeToString()
    options = GrpcOptions(allow_client_shm=True)
    on_hub(lambda: seen.append(serve(engine, options).call(method, content)))()
    return seen[0]


def asked(engine: FakeEngine, method: str, request: Any = b"") -> Any:
    """The response of a call that goes well."""
    stream = called(engine, method, request)
    assert stream.status == 0, stream.message
    return getattr(pb, f"{method}Response").FromString(stream.messages[0])


def refused(engine: FakeEngine, method: str, request: Any) -> tuple[int, str]:
    """The status and the text of a call that goes wrong."""
    stream = called(engine, method, request)
    return stream.status, stream.message


@pytest.mark.parametrize("state", [True, False])
def test_health_calls_report_the_state(state: bool) -> None:
    engine = FakeEngine()
    engine.live = engine.ready = engine.model_ready = state
    assert asked(engine, "ServerLive").live is state
    assert asked(engine, "ServerReady").ready is state
    assert asked(engine, "ModelReady", pb.ModelReadyRequest(name="simple")).ready is state
    check = called(engine, CHECK, b"\x0a\x03any").messages[0]
    assert check == (b"\x08\x01" if state else b"\x08\x02")
    engine.serving = ServingPhase(name=Phase.EXITING)
    for method in ("ServerLive", "ServerReady", CHECK):
        assert refused(engine, method, b"") == (UNAVAILABLE, "Server exiting")


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


def test_statistics_match_those_of_http() -> None:
    versions = [VersionStatistics(name="m", version=n, statistics=SNAPSHOT, memory_bytes=n << 33) for n in (0, 1, 2)]
    message = pb.ModelStatisticsResponse.FromString(statistics_message(versions))
    assert message == json_format.ParseDict(
        model_statistics_json(versions), pb.ModelStatisticsResponse(), ignore_unknown_fields=True
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


def test_failed_load_is_logged_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine()
    engine.refusal = ModelLoadFailed("it is broken")
    load = pb.RepositoryModelLoadRequest(model_name="m")
    assert refused(engine, "RepositoryModelLoad", load) == (INTERNAL, "it is broken")
    (line,) = caplog.records
    assert (line.getMessage().partition(": ")[2], line.exc_info) == ("INTERNAL it is broken", None)


def test_regions_of_cuda_are_registered_shown_and_unregistered() -> None:
    engine = FakeEngine()
    engine.unregister_regions = lambda *call: engine.calls.append(call)  # type: ignore[method-assign]
    cuda = pb.CudaSharedMemoryRegisterRequest(name="r", raw_handle=bytes(64), device_id=-1, byte_size=8)
    asked(engine, "CudaSharedMemoryRegister", cuda)
    asked(engine, "CudaSharedMemoryUnregister")
    assert engine.calls == [("register_cuda", "r", bytes(64), -1, 8), (RegionKind.CUDA, "")]
    engine.cuda_regions = lambda name: [CudaRegion(name="c", device_id=3, byte_size=64)]  # type: ignore[method-assign]
    regions = asked(engine, "CudaSharedMemoryStatus").regions
    assert {name: (each.name, each.device_id, each.byte_size) for name, each in regions.items()} == {"c": ("c", 3, 64)}


WATCH = "/grpc.health.v1.Health/Watch"
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


@pytest.mark.slow
@on_hub
def test_watchers_get_each_readiness_change_until_the_server_stops() -> None:
    engine = FakeEngine()
    engine.ready = False
    client = serve(engine)
    watches = [client.send(WATCH) for _ in range(2)]
    assert [watch.messages for watch in watches] == [[NOT_SERVING]] * 2
    engine.ready = True
    until(lambda: all(len(watch.messages) == 2 for watch in watches))
    engine.serving = ServingPhase(name=Phase.EXITING)
    until(lambda: all(watch.releases for watch in watches))
    for watch in watches:
        assert watch.messages == [NOT_SERVING, SERVING, NOT_SERVING]
        assert (watch.status, watch.message) == (UNAVAILABLE, "Server exiting")


@on_hub
def test_readiness_polling_ends_with_the_last_watcher() -> None:
    client = serve(FakeEngine())
    watch = client.send(WATCH)
    assert watch.receiver is not None
    watch.receiver.cancel()
    assert watch.releases == 1
    readiness = client.application.front_end.readiness
    until(lambda: not readiness._is_looking)
    assert readiness._watchers == {}


@on_hub
def test_slow_watcher_gets_only_the_latest_state() -> None:
    engine = FakeEngine()
    client = serve(engine)
    watch = client.begin(WATCH, window=0)
    client.end(client.feed(watch, b"\0\0\0\0\0"))
    readiness = client.application.front_end.readiness
    for ready in (False, True, False):
        engine.ready = ready
        readiness.expire()
    assert watch.messages == [SERVING]
    watch.take_all()
    until(lambda: len(watch.messages) == 2)
    assert watch.messages == [SERVING, NOT_SERVING]


# --- server reflection, read with the messages of gRPC's own package and with protobuf's pool


PATH = "/grpc.reflection.{}.ServerReflection/ServerReflectionInfo"
SERVICES = ["grpc.health.v1.Health", "inference.GRPCInferenceService"]


def reflected(version: str, *questions: dict[str, Any]) -> list[Any]:
    """The answers to questions on one stream. The two versions have the same bytes."""
    found: list[Any] = []

    @on_hub
    def ask() -> None:
        client = serve(FakeEngine())
        stream = client.begin(PATH.format(version))
        for question in questions:
            client.feed(stream, frame(reflection_pb2.ServerReflectionRequest(**question).SerializeToString()))
        client.end(stream)
        until(lambda: stream.releases)
        assert stream.status == 0
        found.extend(map(reflection_pb2.ServerReflectionResponse.FromString, stream.messages))

    ask()
    return found


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_lists_services_and_messages(version: str) -> None:
    (listed,) = reflected(version, {"list_services": "*", "host": "h"})
    assert listed.valid_host == "h"
    assert listed.original_request.list_services == "*"
    services = [service.name for service in listed.list_services_response.service]
    assert services == SERVICES
    pool = DescriptorPool()
    for response in reflected(version, *({"file_containing_symbol": service} for service in services)):
        # What a file needs comes after it.
        for content in reversed(response.file_descriptor_response.file_descriptor_proto):
            pool.AddSerializedFile(content)
    assert len(pool.FindServiceByName("inference.GRPCInferenceService").methods) == 20
    assert [method.name for method in pool.FindServiceByName("grpc.health.v1.Health").methods] == ["Check", "Watch"]
    assert pool.FindMessageTypeByName("inference.ModelConfig").fields_by_name["name"].number == 1


def test_unknown_names_are_answered_with_an_error_response() -> None:
    unknown, named, extension, numbers, nothing = reflected(
        "v1",
        {"file_containing_symbol": "no.Such"},
        {"file_by_filename": "grpc_service.proto"},
        {"file_containing_extension": {"containing_type": "x"}},
        {"all_extension_numbers_of_type": "inference.ModelInferRequest"},
        {},
    )
    assert (unknown.error_response.error_code, unknown.error_response.error_message) == (5, "'no.Such' is not known")
    assert len(named.file_descriptor_response.file_descriptor_proto) == 2
    assert extension.error_response.error_code == 5
    assert numbers.error_response.error_code == 5
    assert nothing.error_response.error_code == 3
