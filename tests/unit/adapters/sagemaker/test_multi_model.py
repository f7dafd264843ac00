"""The models of a multi-model endpoint, on real engines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from werkzeug.test import Client

from tests.unit.core.lifecycle.lifecycle_bench import BROKEN, LIMIT_S, Bench, living, put, write
from tests.unit.fake_engine import FakeEngine
from tests.waiting import until
from trident.adapters.sagemaker.application import SageMakerApplication
from trident.adapters.sagemaker.model_states import ModelStates
from trident.adapters.sagemaker.multi_model import (
    LONGEST_NAME,
    LoadedModels,
    MemoryBudget,
    check_name,
    check_url,
    folder_of,
)
from trident.adapters.sagemaker.platform import PingMode, SageMakerSettings
from trident.core.errors import AlreadyLoaded, InvalidRequest, ModelLoadFailed, ModelNotFound, OutOfMemory, ServerError
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.admin import MetricsPage
from trident.core.http.front_end import HttpOptions


class Endpoint:
    """The registry over a folder of unpacked archives, on an engine with the fake backend."""

    def __init__(
        self, root: Path, bench: Bench, memory: MemoryBudget | None = None, states: ModelStates | None = None
    ) -> None:
        self.root = root
        self.bench = bench
        self.models = LoadedModels(bench.engine, str(root), memory or MemoryBudget(lambda: None), states)

    def url(self, name: str) -> str:
        return f"{self.root}/{name}/model"

    def load(self, name: str) -> None:
        self.models.load(name, self.url(name))

    def unpack(self, name: str, weight: int | str) -> Path:
        """Unpack an archive with a flat model that answers with `weight`; return the model's folder."""
        return write(self.root / name, "model", weight)

    def ask(self, name: str) -> int:
        with self.models.invocation(name):
            return self.bench.ask(name)

    def names(self) -> list[str]:
        page, _ = self.models.names_after(None)
        return [model.name for model in page]


def waiting(method: str) -> int:
    """The number of threads that wait in this method of the registry for the end of another change."""
    found = [_functions(frame) for frame in sys._current_frames().values()]
    return sum({method, f"begin_{method}"} <= names for names in found)


def _functions(frame: FrameType | None) -> set[str]:
    names = set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


@pytest.fixture(params=["own", "shared"])
def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Endpoint]:
    """With the states of a container in one process, and with those that several front ends share."""
    root = tmp_path / "models"
    root.mkdir()
    with living(control_mode="explicit") as bench:
        states = ModelStates(bench.engine, tmp_path / "states") if request.param == "shared" else None
        yield Endpoint(root, bench, states=states)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def test_one_of_two_simultaneous_loads_wins(endpoint: Endpoint, pool: ThreadPoolExecutor) -> None:
    endpoint.unpack("a", 1)
    with endpoint.bench.backend.holding("a"):
        first = pool.submit(endpoint.load, "a")
        until(lambda: endpoint.bench.backend.loads == ["a:1=1"])
        with pytest.raises(AlreadyLoaded, match=r"^model 'a' is being loaded already$"):
            endpoint.load("a")
        with pytest.raises(ModelNotFound) as caught:
            endpoint.models.get("a")
        assert caught.value.hint == "it is being loaded"
        assert endpoint.names() == []
    first.result(LIMIT_S)
    assert endpoint.ask("a") == 1


def test_an_unload_waits_for_running_invocations(endpoint: Endpoint, pool: ThreadPoolExecutor) -> None:
    endpoint.unpack("a", 1)
    endpoint.load("a")
    with endpoint.models.invocation("a"), endpoint.models.invocation("a"):
        unload = pool.submit(endpoint.models.unload, "a")
        until(lambda: endpoint.names() == [])
        assert endpoint.bench.ask("a") == 1
        with pytest.raises(ModelNotFound) as caught:
            endpoint.ask("a")
        assert caught.value.hint == "it is being unloaded"
        assert not unload.done()
    unload.result(LIMIT_S)
    endpoint.load("a")
    assert endpoint.ask("a") == 1


def test_an_unload_waits_for_another_unload(endpoint: Endpoint, pool: ThreadPoolExecutor) -> None:
    endpoint.unpack("a", 1)
    endpoint.load("a")
    with endpoint.bench.running("a"):
        first = pool.submit(endpoint.models.unload, "a")
        until(lambda: endpoint.names() == [] and waiting("unload") == 0)
        second = pool.submit(endpoint.models.unload, "a")
        until(lambda: waiting("unload") == 1)
    first.result(LIMIT_S)
    second.result(LIMIT_S)
    assert endpoint.bench.backend.models[0].is_closed
    with pytest.raises(ModelNotFound):
        endpoint.models.unload("a")


def test_a_failed_unload_keeps_the_model(endpoint: Endpoint) -> None:
    endpoint.unpack("a", 1)
    endpoint.load("a")
    endpoint.bench.engine.begin_exit()
    with pytest.raises(ServerError, match="Server not ready"):
        endpoint.models.unload("a")
    assert endpoint.names() == ["a"]


def loaded(endpoint: Endpoint, count: int) -> LoadedModels:
    """The registry, with models m0, m1, …"""
    for number in range(count):
        endpoint.unpack(f"m{number}", number)
        endpoint.load(f"m{number}")
    return endpoint.models


def test_a_page_continues_after_an_unloaded_model(endpoint: Endpoint) -> None:
    models = loaded(endpoint, 5)
    _, token = models.names_after(None, 2)
    models.unload("m0")
    models.unload("m1")  # the model whose name the token encodes
    models.unload("m3")
    page, token = models.names_after(token, 2)
    assert ([model.name for model in page], token) == (["m2", "m4"], None)


@pytest.mark.parametrize("token", ["!", "m1", "a", "Li4", "YS9i", "/w==", "-w", "é", "x" * 5000])
def test_invalid_tokens_are_refused(endpoint: Endpoint, token: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^invalid next_page_token$"):
        endpoint.models.names_after(token)


# --- the log


def test_the_log_names_the_folder_and_the_archive_of_a_model(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder = endpoint.unpack("a1b2", 1)
    endpoint.load("a1b2")
    with endpoint.models.invocation("a1b2", "cats.tar.gz"), endpoint.models.invocation("a1b2", "cats.tar.gz"):
        pass
    endpoint.models.unload("a1b2")
    put(folder / "1" / "model.fake", BROKEN)
    with pytest.raises(ServerError):
        endpoint.load("a1b2")
    archive = f"{endpoint.url('a1b2')} (archive 'cats.tar.gz')"
    named, unloaded, failed = [line for line in caplog.messages if "archive" in line]
    assert (named, unloaded) == (f"model 'a1b2' is the one from {archive}", f"model 'a1b2' from {archive} was unloaded")
    assert failed.startswith(f"model 'a1b2' was not loaded from {archive}: ")


# --- the states of models that two front ends share, and what is left when one of them dies


class FrontEnds:
    """Two registries over the same files and engine."""

    def __init__(self, folder: Path, bench: Bench) -> None:
        self.root = folder / "models"
        self.root.mkdir()
        self.bench = bench
        self.states = [ModelStates(bench.engine, folder / "states") for _ in range(2)]
        self.first, self.second = (
            LoadedModels(bench.engine, str(self.root), MemoryBudget(lambda: None), each) for each in self.states
        )

    def url(self, name: str) -> str:
        return f"{self.root}/{name}/model"

    def put(self, name: str) -> str:
        write(self.root / name, "model", 1)
        return self.url(name)


@pytest.fixture
def front_ends(tmp_path: Path) -> Iterator[FrontEnds]:
    with living(control_mode="explicit") as bench:
        yield FrontEnds(tmp_path, bench)


def names(models: LoadedModels) -> list[str]:
    return [model.name for model in models.names_after(None)[0]]


def test_an_unload_waits_for_the_invocations_of_the_other(front_ends: FrontEnds) -> None:
    front_ends.first.load("a", front_ends.put("a"))
    with ThreadPoolExecutor(1) as pool:
        with front_ends.second.invocation("a"):
            unload = pool.submit(front_ends.first.unload, "a")
            until(lambda: names(front_ends.second) == [])
            assert front_ends.bench.ask("a") == 1
            assert not unload.done()
        unload.result(LIMIT_S)


def test_a_change_that_a_dead_front_end_had_begun_is_undone(front_ends: FrontEnds) -> None:
    """The kernel frees its lock, and the file still says that the model is being changed."""
    for name in "ab":
        front_ends.first.load(name, front_ends.put(name))
    front_ends.states[0].begin_unload("a")
    front_ends.states[0]._store.end_change("a")
    with pytest.raises(ModelNotFound):
        front_ends.second.get("a")
    assert names(front_ends.second) == ["b"]
    until(lambda: front_ends.bench.backend.models[0].is_closed)
    front_ends.states[0].begin_load("c", front_ends.put("c"))
    front_ends.states[0]._store.end_change("c")
    front_ends.second.load("c", front_ends.url("c"))
    assert names(front_ends.first) == ["b", "c"]


def test_a_model_that_the_engine_has_lost_is_unknown(front_ends: FrontEnds) -> None:
    front_ends.first.load("a", front_ends.put("a"))
    front_ends.bench.engine.unload_model("a", True, wait=True)
    assert names(front_ends.second) == []
    with pytest.raises(ModelNotFound):
        front_ends.first.get("a")
    front_ends.second.load("a", front_ends.url("a"))
    assert names(front_ends.first) == ["a"]
    front_ends.bench.engine.unload_model("a", True, wait=True)
    front_ends.first.load("a", front_ends.url("a"))  # also if nobody has noticed it yet
    assert names(front_ends.second) == ["a"]


# --- the checks of names and urls in a multi-model load


ROOT = "/opt/ml/models"


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", "a/b", "/etc", "a\0b", "x" * (LONGEST_NAME + 1), "ß" * 128, "\ud800"]
)
def test_invalid_folder_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^invalid model_name '") as caught:
        check_name(name)
    caught.value.message.encode()  # the text can be sent
    with pytest.raises(InvalidRequest, match=r"^invalid url '"):
        check_url(f"{ROOT}/{name}/model", ROOT)


@pytest.mark.parametrize(
    "url",
    [
        "",
        f"{ROOT}/hash",
        f"{ROOT}/hash/other",
        f"{ROOT}/hash/model/a/b",
        f"{ROOT}/hash//model",
        f"{ROOT}/../../etc/model",
        f"{ROOT}/hash/model/..",
        f"{ROOT}/./model",
        f"{ROOT}2/hash/model",
        f"s3:/{ROOT}/hash/model",
        "x" * 100_000,
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match=f"it must be {ROOT}/<name>/model$") as caught:
        check_url(url, ROOT)
    assert len(caught.value.message) < 1000


def test_links_inside_the_root_are_followed(tmp_path: Path) -> None:
    (tmp_path / "disk" / "abc" / "model").mkdir(parents=True)
    root = tmp_path / "models"
    root.symlink_to(tmp_path / "disk")
    (root / "other").symlink_to("abc")
    assert folder_of(f"{root}/other/model", str(root)) == tmp_path / "disk" / "abc" / "model"


@pytest.mark.parametrize("target", ["/dev", "/proc/self", "/sys", "/", "../outside"])
def test_a_link_that_leads_out_is_refused(tmp_path: Path, target: str) -> None:
    root = tmp_path / "models"
    (tmp_path / "outside").mkdir()
    (root / "hash").mkdir(parents=True)
    (root / "hash" / "model").symlink_to(target if target.startswith("/") else tmp_path / "outside")
    with pytest.raises(InvalidRequest, match="leads out of"):
        folder_of(f"{root}/hash/model", str(root))


def test_a_url_without_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hash").mkdir()
    url = f"{tmp_path}/hash/model"
    with pytest.raises(InvalidRequest, match=r"^there is no folder '"):
        folder_of(url, str(tmp_path))
    (tmp_path / "hash" / "model").write_text("a file")
    with pytest.raises(InvalidRequest, match=r"is not a folder$"):
        folder_of(url, str(tmp_path))
    (tmp_path / "hash" / "model").unlink()
    (tmp_path / "hash" / "model").symlink_to("model")
    with pytest.raises(InvalidRequest, match=r"^cannot read '"):
        folder_of(url, str(tmp_path))


# --- the `/models` routes on an engine that only records its loads


class Engine(FakeEngine):
    def load_directory(self, name: str, directory: str) -> None:
        super().load_directory(name, directory)
        self.versions[name] = (1,)


class Container:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.engine = Engine()
        settings = SageMakerSettings(multi_model=True, models_root=str(root), ping_mode=PingMode.LIVE)
        budget = MemoryBudget(lambda: None)
        self.application = SageMakerApplication(
            self.engine, HttpOptions(), ThreadBridge(), settings, MetricsPage(lambda _: b""), memory=budget
        )
        self.open: Any = Client(self.application).open

    def url(self, name: str) -> str:
        return f"{self.root}/{name}/model"

    def load(self, name: str) -> Any:
        folder = self.root / name / "model"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(b"onnx")
        return self.open("/models", method="POST", json={"model_name": name, "url": self.url(name)})


@pytest.fixture
def bench(tmp_path: Path) -> Container:
    return Container(tmp_path)


@pytest.mark.parametrize(
    "query",
    [{"limit": "0"}, {"limit": "-1"}, {"limit": "x"}, {"limit": "²"}, {"limit": "9" * 50}, {"next_page_token": "?"}],
)
def test_invalid_pages_are_refused(bench: Container, query: dict[str, str]) -> None:
    answer = bench.open("/models", query_string=query)
    assert (answer.status_code, list(answer.json)) == (400, ["error"])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"model_name":"m"}',
        b'{"model_name":1,"url":"u"}',
        b'{"model_name":"m","url":"/etc"}',
        b'{"model_name":"../m","url":"/opt/ml/models/m/model"}',
        b'{"model_name":"' + b"x" * 70_000 + b'","url":"u"}',
    ],
)
def test_invalid_loads_are_refused(bench: Container, body: bytes) -> None:
    answer = bench.open("/models", method="POST", data=body)
    assert (answer.status_code, list(answer.json)) == (413 if len(body) > 70_000 else 400, ["error"])
    assert bench.engine.calls == []


@pytest.mark.parametrize("name", ["..", "%2e%2e", "..%2fsecret", "%00", "%ff", "n" * 4000])
def test_names_in_paths_lead_nowhere(bench: Container, name: str) -> None:
    for method, path in (("DELETE", ""), ("POST", "/invoke")):
        assert bench.open(f"/models/{name}{path}", method=method).status_code in (400, 404)
    assert bench.engine.calls == []


def test_a_failed_load_answers_400_with_the_reason(bench: Container) -> None:
    bench.engine.refusal = OutOfMemory("no memory left")
    answer = bench.load("m")
    assert (answer.status_code, answer.json) == (507, {"error": "no memory left"})
    bench.engine.refusal = ModelLoadFailed("the file is no model", hint="export it again")
    answer = bench.load("m")
    assert (answer.status_code, answer.json) == (400, {"error": "the file is no model"})
    assert answer.headers["Trident-Hint"] == "export it again"
    bench.engine.refusal = None
    assert bench.load("m").status_code == 200
