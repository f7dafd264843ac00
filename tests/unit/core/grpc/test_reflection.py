"""Server reflection, read with the messages of gRPC's own package and with protobuf's pool."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from tests.unit.core.grpc.grpc_client import frame, on_hub, serve
from tests.unit.core.waiting.hub_thread import until
from tests.unit.fake_engine import FakeEngine

reflection_pb2 = pytest.importorskip("grpc_reflection.v1alpha.reflection_pb2")
PATH = "/grpc.reflection.{}.ServerReflection/ServerReflectionInfo"
SERVICES = ["grpc.health.v1.Health", "inference.GRPCInferenceService"]


def asked(version: str, *questions: dict[str, Any]) -> list[Any]:
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
def test_a_client_learns_all_services_and_their_messages(version: str) -> None:
    (listed,) = asked(version, {"list_services": "*", "host": "h"})
    assert listed.valid_host == "h"
    assert listed.original_request.list_services == "*"
    services = [service.name for service in listed.list_services_response.service]
    assert services == SERVICES
    pool = DescriptorPool()
    for response in asked(version, *({"file_containing_symbol": service} for service in services)):
        # What a file needs comes after it.
        for content in reversed(response.file_descriptor_response.file_descriptor_proto):
            pool.AddSerializedFile(content)
    assert len(pool.FindServiceByName("inference.GRPCInferenceService").methods) == 20
    assert [method.name for method in pool.FindServiceByName("grpc.health.v1.Health").methods] == ["Check", "Watch"]
    assert pool.FindMessageTypeByName("inference.ModelConfig").fields_by_name["name"].number == 1


def test_the_health_service_is_described_as_by_grpcs_package() -> None:
    health_pb2 = pytest.importorskip("grpc_health.v1.health_pb2")
    (response,) = asked("v1", {"file_containing_symbol": "grpc.health.v1.HealthCheckResponse.ServingStatus"})
    (content,) = response.file_descriptor_response.file_descriptor_proto
    ours = FileDescriptorProto.FromString(content)
    theirs = FileDescriptorProto.FromString(health_pb2.DESCRIPTOR.serialized_pb)
    assert ours.message_type[0] == theirs.message_type[0]
    assert ours.message_type[1] == theirs.message_type[1]
    assert ours.service[0].method[:2] == theirs.service[0].method[:2]


def test_unknown_names_are_answered_with_an_error_response() -> None:
    unknown, named, extension, numbers, nothing = asked(
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
