from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.app.emulators.sagemaker.test_tarball import archived, file
from tests.unit.app.emulators.scripted_container import LIMIT_S, Answer, Call, ScriptedContainer
from trident.app.emulators.container import ContainerClient
from trident.app.emulators.report import BreachReport
from trident.app.emulators.sagemaker.archives import LocalArchives, ModelArchives, name_of
from trident.app.emulators.sagemaker.endpoint import (
    EndpointModels,
    MultiModelEndpoint,
    PlatformLimits,
    SingleModelEndpoint,
)
from trident.app.emulators.sagemaker.errors import ApiError
from trident.app.emulators.sagemaker.invocation import Invocation

LIMITS = PlatformLimits(invoke_s=LIMIT_S, stream_s=LIMIT_S, load_s=LIMIT_S)
ROW = Invocation({"Content-Type": "text/csv"}, b"1,2")


class Single:
    def __init__(self, answer: Callable[[Call], Answer], limits: PlatformLimits = LIMITS) -> None:
        self.container = ScriptedContainer(answer)
        self.report = BreachReport()
        self.endpoint = SingleModelEndpoint(ContainerClient(self.container.port, limits), limits, self.report)

    def refusal(self) -> ApiError:
        with self.container, pytest.raises(ApiError) as found:
            self.endpoint.invoke(ROW)
        return found.value


def test_an_invocation_goes_to_the_containers_route() -> None:
    single = Single(lambda call: Answer(200, call.body, {"Content-Type": "text/csv"}))
    with single.container:
        assert single.endpoint.invoke(ROW).body == b"1,2"
    (call,) = single.container.calls
    assert (call.method, call.path, call.headers["Content-Type"]) == ("POST", "/invocations", "text/csv")


@pytest.mark.parametrize(("status", "whose"), [(400, "client"), (415, "client"), (500, "server"), (503, "server")])
def test_an_error_of_the_container_is_a_model_error(status: int, whose: str) -> None:
    single = Single(lambda call: Answer(status, b'{"error":"why"}'))
    refusal = single.refusal()
    assert (refusal.status, refusal.kind) == (424, "ModelError")
    assert refusal.members == {"OriginalStatusCode": status, "OriginalMessage": '{"error":"why"}'}
    assert f"Received {whose} error ({status})" in refusal.message
    assert single.report.breaches == {}


def test_a_late_answer_is_a_breach() -> None:
    held = threading.Event()
    single = Single(lambda call: (held.wait(LIMIT_S), Answer())[1], PlatformLimits(invoke_s=0.05))
    with single.container:
        with pytest.raises(ApiError) as refusal:
            single.endpoint.invoke(ROW)
        held.set()
    assert refusal.value.members["OriginalStatusCode"] == 0
    assert list(single.report.breaches) == ["POST /invocations: the container did not answer within 50 ms"]


def test_a_target_model_is_refused_by_a_single_model_endpoint() -> None:
    single = Single(lambda call: Answer())
    with single.container, pytest.raises(ApiError, match="single-model endpoint"):
        single.endpoint.invoke(Invocation({}, b"", "a"))
    assert single.container.calls == []


def test_a_stream_is_passed_on() -> None:
    single = Single(lambda call: Answer(200, b"some of it"))
    with single.container, single.endpoint.stream(ROW) as stream:
        assert b"".join(stream.parts()) == b"some of it"


def test_a_refused_stream_is_a_model_error() -> None:
    single = Single(lambda call: Answer(501, b"not yet"))
    with single.container, pytest.raises(ApiError) as refusal, single.endpoint.stream(ROW):
        pass
    assert refusal.value.members == {"OriginalStatusCode": 501, "OriginalMessage": "not yet"}


class Multi:
    """An endpoint with two archives. Loads succeed, and invocations get the `statuses` in order."""

    def __init__(self, folder: Path) -> None:
        for key in ("a", "b"):
            (folder / "archives").mkdir(exist_ok=True)
            archived(folder, file("config.pbtxt")).rename(folder / "archives" / key)
        (folder / "models").mkdir()
        self.statuses: list[int] = []
        self.report = BreachReport()
        self.container = ScriptedContainer(self._answer)
        client = ContainerClient(self.container.port, LIMITS)
        archives = ModelArchives(LocalArchives(folder / "archives"), folder / "models", 1 << 20)
        self.models = EndpointModels(client, archives, LIMITS, self.report)
        self.endpoint = MultiModelEndpoint(client, self.models, LIMITS, self.report)

    def invoke(self, key: str) -> bytes:
        return self.endpoint.invoke(Invocation({}, b"x", key)).body

    def _answer(self, call: Call) -> Answer:
        if not call.path.endswith("/invoke"):
            return Answer()
        return Answer(self.statuses.pop(0) if self.statuses else 200, call.path.encode())


@pytest.fixture
def multi(tmp_path: Path) -> Iterator[Multi]:
    made = Multi(tmp_path)
    with made.container:
        yield made


def test_an_invocation_must_name_its_model(multi: Multi) -> None:
    assert multi.invoke("a") == f"/models/{name_of('a')}/invoke".encode()
    with pytest.raises(ApiError, match="without the header"):
        multi.invoke("")


def test_a_request_without_memory_evicts_another_model(multi: Multi) -> None:
    multi.invoke("a")
    multi.invoke("b")
    multi.statuses = [507, 200]
    multi.invoke("a")
    assert list(multi.models.loaded()) == [name_of("a")]


def test_a_request_without_memory_fails_if_nothing_can_be_evicted(multi: Multi) -> None:
    multi.statuses = [507]
    with pytest.raises(ApiError) as refusal:
        multi.invoke("a")
    assert refusal.value.members["OriginalStatusCode"] == 507


def test_a_404_for_a_loaded_model_is_a_breach(multi: Multi) -> None:
    multi.statuses = [404]
    with pytest.raises(ApiError):
        multi.invoke("a")
    (breach,) = multi.report.breaches
    assert breach.endswith("answered 404 for a model that is loaded")


def test_a_multi_model_endpoint_refuses_streams(multi: Multi) -> None:
    with pytest.raises(ApiError, match="no response stream"), multi.endpoint.stream(ROW):
        pass
