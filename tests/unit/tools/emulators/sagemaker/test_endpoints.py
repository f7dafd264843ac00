"""SageMaker's endpoints: forwarded invocations, and models that are loaded, listed and evicted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.tools.emulators.sagemaker.test_archives import archived, file
from tests.unit.tools.emulators.scripted_container import LIMIT_S, Answer, Call, ScriptedContainer
from tests.waiting import until
from trident.tools.emulators.container import BreachReport, ContainerClient, ContainerFault
from trident.tools.emulators.sagemaker.archives import LocalArchives, ModelArchives, name_of
from trident.tools.emulators.sagemaker.endpoint import (
    EndpointModels,
    MultiModelEndpoint,
    SageMakerLimits,
    SingleModelEndpoint,
    read_model_list,
)
from trident.tools.emulators.sagemaker.invocation import ApiError, Invocation

LIMITS = SageMakerLimits(invoke_s=LIMIT_S, stream_s=LIMIT_S, load_s=LIMIT_S)
ROW = Invocation({"Content-Type": "text/csv"}, b"1,2")


def single(container: ScriptedContainer) -> SingleModelEndpoint:
    return SingleModelEndpoint(ContainerClient(container.port, LIMITS), LIMITS, BreachReport())


def test_a_target_model_is_refused_by_a_single_model_endpoint() -> None:
    with ScriptedContainer(lambda call: Answer()) as container, pytest.raises(ApiError, match="single-model endpoint"):
        single(container).invoke(Invocation({}, b"", "a"))
    assert container.calls == []


def test_a_refused_stream_is_a_model_error() -> None:
    with ScriptedContainer(lambda call: Answer(501, b"not yet")) as container, pytest.raises(ApiError) as refusal:
        single(container).stream(ROW).__enter__()
    assert refusal.value.members == {"OriginalStatusCode": 501, "OriginalMessage": "not yet"}


KEYS = ("a", "b", "c", "d")


class Shelf:
    """A container with room for `places` models; loads wait for the gate, and invocations get `statuses` in order."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.loaded: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.unload_status = 200
        self.statuses: list[int] = []
        self._lock = threading.Lock()

    def __call__(self, call: Call) -> Answer:
        if call.path.endswith("/invoke"):
            return Answer(self.statuses.pop(0) if self.statuses else 200)
        if call.method == "DELETE":
            with self._lock:
                self.loaded.remove(call.path.removeprefix("/models/"))
            return Answer(self.unload_status)
        assert (call.method, call.path) == ("POST", "/models")
        assert self.gate.wait(LIMIT_S)
        document = json.loads(call.body)
        assert Path(document["url"], "file").is_file()
        with self._lock:
            if len(self.loaded) >= self.places:
                return Answer(507, b"full")
            self.loaded.append(document["model_name"])
        return Answer()


class Bench:
    """Four archives, the models of their endpoint, and the endpoint."""

    def __init__(self, tmp_path: Path, shelf: Callable[[Call], Answer], limits: SageMakerLimits = LIMITS) -> None:
        (tmp_path / "archives").mkdir()
        (tmp_path / "models").mkdir()
        for key in KEYS:
            archived(tmp_path, file("file")).rename(tmp_path / "archives" / key)
        self.report = BreachReport()
        self.folders = tmp_path / "models"
        self.container = ScriptedContainer(shelf)
        self.client = ContainerClient(self.container.port, limits)
        archives = ModelArchives(LocalArchives(tmp_path / "archives"), self.folders, 1 << 20)
        self.models = EndpointModels(self.client, archives, limits, self.report)
        self.endpoint = MultiModelEndpoint(self.client, self.models, limits, self.report)

    def invoke(self, key: str) -> None:
        self.endpoint.invoke(Invocation({}, b"x", key))

    def use(self, *keys: str) -> None:
        for key in keys:
            with self.models.use(key) as name:
                assert name == name_of(key)

    def unpacked(self) -> set[str]:
        return {folder.name for folder in self.folders.iterdir()}


@pytest.fixture
def shelf() -> Shelf:
    return Shelf(2)


@pytest.fixture
def bench(tmp_path: Path, shelf: Shelf) -> Iterator[Bench]:
    made = Bench(tmp_path, shelf)
    with made.container:
        yield made


def test_a_request_without_memory_evicts_another_model(bench: Bench, shelf: Shelf) -> None:
    bench.invoke("a")
    bench.invoke("b")
    shelf.statuses = [507, 200]
    bench.invoke("a")
    assert list(bench.models.loaded()) == [name_of("a")]


def test_a_request_without_memory_fails_if_nothing_can_be_evicted(bench: Bench, shelf: Shelf) -> None:
    shelf.statuses = [507]
    with pytest.raises(ApiError) as refusal:
        bench.invoke("a")
    assert refusal.value.members["OriginalStatusCode"] == 507


def test_a_404_for_a_loaded_model_is_a_breach(bench: Bench, shelf: Shelf) -> None:
    shelf.statuses = [404]
    with pytest.raises(ApiError):
        bench.invoke("a")
    (breach,) = bench.report.breaches
    assert breach.endswith("answered 404 for a model that is loaded")


def names(*keys: str) -> list[str]:
    return [name_of(key) for key in keys]


def test_a_model_in_use_is_not_evicted(bench: Bench, shelf: Shelf) -> None:
    with ThreadPoolExecutor(1) as pool, bench.models.use("a"):
        bench.use("b", "c")  # b is evicted, although a was used less recently
        assert shelf.loaded == names("a", "c")
        with bench.models.use("c"):
            waiting = pool.submit(bench.use, "d")
            until(lambda: len(bench.container.calls) == 6)  # c was refused once, and d is refused now
            assert shelf.loaded == names("a", "c")
        waiting.result(LIMIT_S)
    assert shelf.loaded == names("a", "d")


def test_eviction_by_a_request_in_flight_does_not_wait(bench: Bench) -> None:
    with bench.models.use("a"), bench.models.use("b"):
        assert not bench.models.evict_for("a")


def test_a_model_that_never_fits_is_an_error_for_the_caller(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Shelf(0))
    with bench.container, pytest.raises(ApiError) as refusal:
        bench.use("a")
    assert refusal.value.members == {"OriginalStatusCode": 507, "OriginalMessage": "full"}
    assert bench.unpacked() == set()


def test_a_slow_load_continues_without_its_caller(tmp_path: Path, shelf: Shelf) -> None:
    bench = Bench(tmp_path, shelf, replace(LIMITS, invoke_s=0.05))
    shelf.gate.clear()
    with bench.container:
        with pytest.raises(ApiError) as refusal:
            bench.use("a")
        assert (refusal.value.status, refusal.value.kind) == (429, "ModelNotReadyException")
        shelf.gate.set()
        until(bench.models.loaded)
        bench.use("a")
    assert bench.container.paths() == ["POST /models"]


def test_an_unanswered_load_is_a_breach(tmp_path: Path) -> None:
    held = threading.Event()
    bench = Bench(tmp_path, lambda call: (held.wait(LIMIT_S), Answer())[1], replace(LIMITS, load_s=0.05))
    with bench.container:
        with pytest.raises(ApiError) as refusal:
            bench.use("a")
        held.set()
    assert refusal.value.members["OriginalStatusCode"] == 0
    assert list(bench.report.breaches) == ["POST /models: the container did not answer within 50 ms"]


def test_a_load_cut_off_by_shutdown_is_not_a_breach(tmp_path: Path) -> None:
    def cut_off(call: Call) -> Answer:
        cut.client.close()
        raise ConnectionResetError

    cut = Bench(tmp_path, cut_off)
    with cut.container:
        for key in ("a", "b"):  # the second one comes too late to be sent
            with pytest.raises(ApiError, match="being deleted"):
                cut.use(key)
    assert cut.container.paths() == ["POST /models"]
    assert cut.report.breaches == {}


def test_a_failed_unload_is_a_breach(bench: Bench, shelf: Shelf) -> None:
    shelf.unload_status = 404
    bench.use("a", "b", "c")
    assert list(bench.report.breaches) == [
        f"DELETE /models/{name_of('a')}: the container answered 404 for a model that is loaded"
    ]
    assert (bench.models.evictions, bench.unpacked()) == (1, {*names("b", "c")})


def listed(container: ScriptedContainer) -> dict[str, str]:
    with container:
        return read_model_list(ContainerClient(container.port, SageMakerLimits()), LIMIT_S)


def page(names: str, token: str = "") -> Answer:
    document = {"models": [{"modelName": name, "modelUrl": f"/{name}"} for name in names]}
    return Answer(body=json.dumps(document | ({"nextPageToken": token} if token else {})).encode())


@pytest.mark.slow
def test_endless_pages_are_a_fault() -> None:
    with pytest.raises(ContainerFault, match="over and over"):
        listed(ScriptedContainer(lambda call: page("a", "again")))


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"models": [{}]}', b'{"models": [{"modelName": 1, "modelUrl": "x"}]}', b'{"models": 1}'],
)
def test_a_malformed_list_is_a_fault(body: bytes) -> None:
    with pytest.raises(ContainerFault, match="not a list of models"):
        listed(ScriptedContainer(lambda call: Answer(body=body)))
