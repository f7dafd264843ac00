"""The unary RPCs, as a client calls them, and the health watch. The contract tests have the texts of errors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from tests.unit.core.grpc.grpc_client import Client, with_client
from tests.unit.core.waiting.hub_thread import until
from tests.unit.fake_engine import FakeEngine
from trident.core.errors import InvalidRequest, ModelLoadFailed, ModelLoading, ModelNotFound, ModelNotReady, ServerError
from trident.core.lifecycle.state import Phase, ServingPhase
from trident.core.observability.log import LogLevels, change_log

CHECK = "/grpc.health.v1.Health/Check"
INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 3, 5, 12, 13, 14


def asked(engine: FakeEngine, method: str, request: Any, response: type[Any]) -> Any:
    """The response of a call that goes well."""
    seen: list[Any] = []

    def test(client: Client) -> None:
        stream = client.call(method, request if isinstance(request, bytes) else request.SerializeToString())
        assert stream.status == 0, stream.message
        seen.append(response.FromString(stream.messages[0]))

    with_client(engine, test)
    return seen[0]


def refused(engine: FakeEngine, method: str, request: Any) -> tuple[int, str]:
    """The status and the text of a call that goes wrong."""
    seen: list[tuple[int, str]] = []

    def test(client: Client) -> None:
        stream = client.call(method, request if isinstance(request, bytes) else request.SerializeToString())
        seen.append((stream.status, stream.message))

    with_client(engine, test)
    return seen[0]


@pytest.mark.parametrize("state", [True, False])
def test_the_health_of_a_server(state: bool) -> None:
    engine = FakeEngine()
    engine.live = engine.ready = engine.model_ready = state
    assert asked(engine, "ServerLive", b"", pb.ServerLiveResponse).live is state
    assert asked(engine, "ServerReady", b"", pb.ServerReadyResponse).ready is state
    assert asked(engine, "ModelReady", pb.ModelReadyRequest(name="simple"), pb.ModelReadyResponse).ready is state
    check = asked(engine, CHECK, b"\x0a\x03any", _Check)
    assert check == (b"\x08\x01" if state else b"\x08\x02")


class _Check:
    @staticmethod
    def FromString(content: bytes) -> bytes:
        return content


@pytest.mark.parametrize("method", ["ServerLive", "ServerReady", CHECK])
def test_an_exiting_server_says_so(method: str) -> None:
    engine = FakeEngine()
    engine.serving = ServingPhase(name=Phase.EXITING)
    assert refused(engine, method, b"") == (UNAVAILABLE, "Server exiting")


def test_metadata_configuration_and_statistics() -> None:
    engine = FakeEngine()
    server = asked(engine, "ServerMetadata", b"", pb.ServerMetadataResponse)
    assert (server.name, server.version, list(server.extensions)) == ("triton", "2", ["statistics"])
    query = pb.ModelMetadataRequest(name="simple", version="3")
    model = asked(engine, "ModelMetadata", query, pb.ModelMetadataResponse)
    assert (model.name, list(model.versions), model.inputs[0].name) == ("simple", ["3"], "IN")
    assert asked(engine, "ModelConfig", query, pb.ModelConfigResponse).config.max_batch_size == 3
    statistics = asked(engine, "ModelStatistics", b"", pb.ModelStatisticsResponse)
    assert [each.name for each in statistics.model_stats] == ["all"]


@pytest.mark.parametrize("method", ["ModelReady", "ModelMetadata", "ModelConfig"])
def test_an_unknown_model_and_a_bad_version(method: str) -> None:
    engine = FakeEngine()
    if method != "ModelReady":
        unknown = pb.ModelReadyRequest(name="nope")
        assert refused(engine, method, unknown) == (NOT_FOUND, "Request for unknown model: 'nope' is not found")
    status, text = refused(engine, method, pb.ModelReadyRequest(name="simple", version="one"))
    assert status == INVALID_ARGUMENT
    assert text.startswith("failed to get model version from specified version string 'one'")


@pytest.mark.parametrize("lookup_error", [ModelNotFound, ModelNotReady, ModelLoading, InvalidRequest])
def test_a_model_that_is_unknown_failed_loading_or_ambiguous_is_not_ready(lookup_error: type[ServerError]) -> None:
    class Engine(FakeEngine):
        def is_model_ready(self, name: str, version: int = -1) -> bool:
            raise lookup_error("no")

    assert not asked(Engine(), "ModelReady", pb.ModelReadyRequest(name="m"), pb.ModelReadyResponse).ready


def test_statistics_of_an_unknown_model() -> None:
    query = pb.ModelStatisticsRequest(name="nope")
    assert refused(FakeEngine(), "ModelStatistics", query) == (
        INVALID_ARGUMENT,
        "requested model 'nope' is not available",
    )


def test_the_repository() -> None:
    engine = FakeEngine()
    index = asked(engine, "RepositoryIndex", pb.RepositoryIndexRequest(ready=True), pb.RepositoryIndexResponse)
    assert [(model.name, model.state) for model in index.models] == [("simple", "READY")]
    load = pb.RepositoryModelLoadRequest(model_name="m", parameters={"config": {"string_param": "{}"}})
    asked(engine, "RepositoryModelLoad", load, pb.RepositoryModelLoadResponse)
    unload = pb.RepositoryModelUnloadRequest(model_name="m", parameters={"unload_dependents": {"bool_param": True}})
    asked(engine, "RepositoryModelUnload", unload, pb.RepositoryModelUnloadResponse)
    assert engine.calls == [("load", "m", {"config": "{}"}), ("unload", "m", True)]
    engine.refusal = ModelLoadFailed("it is broken")
    assert refused(engine, "RepositoryModelLoad", load) == (INTERNAL, "it is broken")


def test_trace_settings_are_changed_by_the_engine() -> None:
    engine = FakeEngine()
    trace = asked(engine, "TraceSetting", b"", pb.TraceSettingResponse)
    assert list(trace.settings["trace_level"].value) == ["OFF"]
    unknown = pb.TraceSettingRequest(model_name="nope", settings={"trace_rate": {"value": ["1"]}})
    assert refused(engine, "TraceSetting", unknown) == (INVALID_ARGUMENT, "Request for unknown model : nope")
    assert engine.calls == []
    change = pb.TraceSettingRequest(
        model_name="simple", settings={"trace_rate": {"value": ["5"]}, "trace_count": {"value": []}}
    )
    assert list(asked(engine, "TraceSetting", change, pb.TraceSettingResponse).settings["trace_rate"].value) == ["5"]
    assert engine.calls == [("change_trace", "simple", {"trace_rate": 5, "trace_count": None})]
    for wrong, text in (
        ({"trace_rate": {"value": ["1", "2"]}}, "expect only 1 value for 'trace_rate'"),
        ({"trace_count": {"value": ["-2"]}}, "Unable to parse 'trace_count'. Expecting value >= -1, got: -2"),
    ):
        assert refused(engine, "TraceSetting", pb.TraceSettingRequest(settings=wrong)) == (INVALID_ARGUMENT, text)
    fixed = pb.TraceSettingRequest(settings={"trace_file": {"value": ["x"]}})
    assert refused(engine, "TraceSetting", fixed)[0] == UNIMPLEMENTED


@given(
    st.dictionaries(
        st.sampled_from(["trace_level", "trace_rate", "trace_count", "log_frequency", "trace_file", "x"]),
        st.lists(st.sampled_from(["0", "1", "-2", "99999999999", "OFF", "TIMESTAMPS", "x", ""]), max_size=3),
    )
)
def test_no_trace_settings_are_an_error_of_the_server(settings: dict[str, list[str]]) -> None:
    change = pb.TraceSettingRequest(settings={name: {"value": values} for name, values in settings.items()})
    assert refused(FakeEngine(), "TraceSetting", change)[0] in (0, INVALID_ARGUMENT, UNIMPLEMENTED)


def test_log_settings_are_changed_by_the_engine() -> None:
    change_log(LogLevels())  # whatever another test left
    engine = FakeEngine()
    log = asked(engine, "LogSettings", b"", pb.LogSettingsResponse)
    assert log.settings["log_info"].bool_param is True
    change = pb.LogSettingsRequest(settings={"log_info": {"bool_param": False}})
    asked(engine, "LogSettings", change, pb.LogSettingsResponse)
    assert engine.calls == [("change_log", LogLevels(info=False))]


def test_a_message_of_another_kind_is_refused() -> None:
    assert refused(FakeEngine(), "ModelReady", b"\xff\xff") == (INTERNAL, "Unable to parse request")


WATCH = "/grpc.health.v1.Health/Watch"
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


@pytest.mark.slow
def test_each_change_of_the_readiness_is_told_until_the_server_stops() -> None:
    engine = FakeEngine()
    engine.ready = False

    def test(client: Client) -> None:
        watches = [client.send(WATCH) for _ in range(2)]
        assert [watch.messages for watch in watches] == [[NOT_SERVING]] * 2
        engine.ready = True
        until(lambda: all(len(watch.messages) == 2 for watch in watches))
        engine.serving = ServingPhase(name=Phase.EXITING)
        until(lambda: all(watch.releases for watch in watches))
        for watch in watches:
            assert watch.messages == [NOT_SERVING, SERVING, NOT_SERVING]
            assert (watch.status, watch.message) == (UNAVAILABLE, "Server exiting")

    with_client(engine, test)


def test_nobody_looks_any_more_when_the_last_watcher_has_gone() -> None:
    def test(client: Client) -> None:
        watch = client.send(WATCH)
        assert watch.receiver is not None
        watch.receiver.cancel()
        assert watch.releases == 1
        readiness = client.application.front_end.readiness
        until(lambda: not readiness._is_looking)
        assert readiness._watchers == {}

    with_client(FakeEngine(), test)


def test_a_client_that_does_not_read_is_told_the_latest_state_only() -> None:
    engine = FakeEngine()

    def test(client: Client) -> None:
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

    with_client(engine, test)
