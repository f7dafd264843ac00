"""The models of a multi-model endpoint, with a container whose capacity the test sets."""

from __future__ import annotations

import json
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.app.emulators.scripted_container import LIMIT_S, Answer, Call, ScriptedContainer
from tests.waiting import until
from trident.app.emulators.container import ContainerClient
from trident.app.emulators.report import BreachReport
from trident.app.emulators.sagemaker.archives import LocalArchives, ModelArchives, name_of
from trident.app.emulators.sagemaker.endpoint import EndpointModels, PlatformLimits
from trident.app.emulators.sagemaker.errors import ApiError

KEYS = ("a", "b", "c", "d")


class Shelf:
    """A container with room for `places` models; loads wait for the gate."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.loaded: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.unload_status = 200
        self._lock = threading.Lock()

    def __call__(self, call: Call) -> Answer:
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
    """Four archives, and the models of their endpoint."""

    def __init__(self, tmp_path: Path, shelf: Callable[[Call], Answer], limits: PlatformLimits) -> None:
        (tmp_path / "archives").mkdir()
        (tmp_path / "models").mkdir()
        (tmp_path / "file").write_text("x")
        for key in KEYS:
            with tarfile.open(tmp_path / "archives" / key, "w:gz") as tar:
                tar.add(tmp_path / "file", "file")
        self.report = BreachReport()
        self.folders = tmp_path / "models"
        self.container = ScriptedContainer(shelf)
        self.client = ContainerClient(self.container.port, limits)
        archives = ModelArchives(LocalArchives(tmp_path / "archives"), self.folders, 1 << 20)
        self.models = EndpointModels(self.client, archives, limits, self.report)

    def use(self, *keys: str) -> None:
        for key in keys:
            with self.models.use(key) as name:
                assert name == name_of(key)

    def unpacked(self) -> set[str]:
        return {folder.name for folder in self.folders.iterdir()}


LIMITS = PlatformLimits(invoke_s=LIMIT_S, load_s=LIMIT_S)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf(2)


@pytest.fixture
def bench(tmp_path: Path, shelf: Shelf) -> Iterator[Bench]:
    made = Bench(tmp_path, shelf, LIMITS)
    with made.container:
        yield made


def names(*keys: str) -> list[str]:
    return [name_of(key) for key in keys]


def test_a_model_is_loaded_for_its_first_call(bench: Bench) -> None:
    bench.use("a", "a", "b", "a")
    assert bench.container.paths() == ["POST /models"] * 2
    assert bench.models.loaded() == {name_of(key): str(bench.folders / name_of(key) / "model") for key in "ab"}


def test_the_least_recently_used_model_is_evicted(bench: Bench, shelf: Shelf) -> None:
    bench.use("a", "b", "a", "c")
    assert shelf.loaded == names("a", "c")
    assert bench.unpacked() == set(names("a", "c"))
    assert bench.models.evictions == 1
    bench.use("b")
    assert shelf.loaded == names("c", "b")
    assert bench.report.breaches == {}


def test_callers_of_one_model_share_its_load(bench: Bench, shelf: Shelf) -> None:
    shelf.gate.clear()
    with ThreadPoolExecutor(4) as pool:
        uses = [pool.submit(bench.use, "a") for _ in range(4)]
        until(lambda: bench.container.calls)
        shelf.gate.set()
        for use in uses:
            use.result(LIMIT_S)
    assert bench.container.paths() == ["POST /models"]


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


def test_an_eviction_by_a_user_of_a_model_does_not_wait(bench: Bench) -> None:
    with bench.models.use("a"), bench.models.use("b"):
        assert not bench.models.evict_for("a")


def test_a_model_that_never_fits_is_an_error_for_the_caller(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Shelf(0), LIMITS)
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


def test_a_failed_load_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    answers = [Answer(400, b'{"error":"bad model"}'), Answer()]
    bench = Bench(tmp_path, lambda call: answers.pop(0), LIMITS)
    with bench.container:
        with pytest.raises(ApiError) as refusal:
            bench.use("a")
        assert refusal.value.status == 424
        assert refusal.value.members["OriginalStatusCode"] == 400
        assert bench.unpacked() == set()
        bench.use("a")
    assert bench.report.breaches == {}


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

    cut = Bench(tmp_path, cut_off, LIMITS)
    with cut.container:
        for key in ("a", "b"):  # the second one comes too late to be sent
            with pytest.raises(ApiError, match="being deleted"):
                cut.use(key)
    assert cut.container.paths() == ["POST /models"]
    assert cut.report.breaches == {}


def test_a_model_that_the_container_has_loaded_already_serves(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lambda call: Answer(409), LIMITS)
    with bench.container:
        bench.use("a")
    assert list(bench.models.loaded()) == names("a")


def test_a_failed_unload_is_a_breach(bench: Bench, shelf: Shelf) -> None:
    shelf.unload_status = 404
    bench.use("a", "b", "c")
    assert list(bench.report.breaches) == [
        f"DELETE /models/{name_of('a')}: the container answered 404 for a model that is loaded"
    ]


def test_a_missing_archive_sends_nothing_to_the_container(bench: Bench) -> None:
    with pytest.raises(ApiError, match="no archive"):
        bench.use("z")
    assert bench.container.calls == []
