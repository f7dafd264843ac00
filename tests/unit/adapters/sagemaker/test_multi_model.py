"""The models of a multi-model endpoint, on real engines."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client

from tests.unit.adapters.platform_bench import host_of
from tests.unit.core.lifecycle.lifecycle_bench import BROKEN, LIMIT_S, Bench, living, put, unstarted, weight_of, write
from tests.unit.fake_engine import FakeEngine
from tests.waiting import until
from trident.adapters.sagemaker.application import SageMakerApplication
from trident.adapters.sagemaker.multi_model import (
    LONGEST_NAME,
    LoadedModels,
    check_name,
    check_url,
    folder_of,
)
from trident.adapters.sagemaker.platform import PingMode, SageMakerSettings
from trident.core.errors import AlreadyLoaded, InvalidRequest, ModelLoadFailed, ModelNotFound, OutOfMemory, ServerError
from trident.core.lifecycle.memory import MemoryLedger, ModelBudget
from trident.core.lifecycle.options import MemoryShare
from trident.core.repository.sources import Repositories

ENSEMBLE = """
platform: "ensemble"
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
ensemble_scheduling { step [
  { model_name: "a" model_version: -1
    input_map { key: "INPUT0" value: "IN" } output_map { key: "OUTPUT0" value: "OUT" } } ] }
"""


class Endpoint:
    """The models of an endpoint over a folder of unpacked archives, on an engine with the fake backend."""

    def __init__(self, root: Path, bench: Bench) -> None:
        self.root = root
        self.bench = bench
        self.models = LoadedModels(bench.engine, str(root))

    def url(self, name: str) -> str:
        return f"{self.root}/{name}/model"

    def load(self, name: str) -> None:
        self.models.load(name, self.url(name))

    def unpack(self, name: str, weight: int | str) -> Path:
        """Unpack an archive with a flat model that answers with `weight`; return the model's folder."""
        return write(self.root / name, "model", weight)

    def names(self) -> list[str]:
        page, _ = self.models.page(None)
        return [name for name, _ in page]


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    root = tmp_path / "models"
    root.mkdir()
    with living(control_mode="demand") as bench:
        yield Endpoint(root, bench)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def test_only_one_of_two_simultaneous_loads_succeeds(endpoint: Endpoint, pool: ThreadPoolExecutor) -> None:
    endpoint.unpack("a", 1)
    with endpoint.bench.backend.holding("a"):
        first = pool.submit(endpoint.load, "a")
        until(lambda: endpoint.bench.backend.loads == ["a:1=1"])
        with pytest.raises(AlreadyLoaded, match=r"^model 'a' is being loaded already$"):
            endpoint.load("a")
        with pytest.raises(ModelNotFound):
            endpoint.models.url("a")
        assert endpoint.names() == []
        early = pool.submit(endpoint.bench.ask, "a")
    first.result(LIMIT_S)
    assert early.result(LIMIT_S) == 1
    assert endpoint.names() == ["a"]
    with pytest.raises(AlreadyLoaded, match=r"^model 'a' is loaded already$"):
        endpoint.load("a")
    assert endpoint.bench.backend.loads == ["a:1=1"]


def test_an_unload_waits_for_running_invocations(endpoint: Endpoint, pool: ThreadPoolExecutor) -> None:
    endpoint.unpack("a", 1)
    endpoint.load("a")
    with endpoint.bench.running("a") as responses:
        unload = pool.submit(endpoint.models.unload, "a")
        until(lambda: endpoint.names() == [])
        with pytest.raises(ModelNotFound):
            endpoint.bench.ask("a")
        assert not unload.done()
    assert weight_of(responses) == 1
    unload.result(LIMIT_S)
    assert endpoint.bench.backend.models[0].is_closed
    with pytest.raises(ModelNotFound):
        endpoint.models.unload("a")
    endpoint.load("a")
    assert endpoint.bench.ask("a") == 1


def test_an_unload_ends_a_load_that_requests_wait_for(endpoint: Endpoint, pool: ThreadPoolExecutor) -> None:
    """As after a restart of the engine: the model is registered, and loaded again."""
    endpoint.unpack("a", 1)
    endpoint.load("a")
    endpoint.bench.backend.models[0].instances[0].close()
    demand = endpoint.bench.lifecycle.demand
    assert demand is not None
    (registration,) = demand.all()
    endpoint.bench.lifecycle.loads.unload(endpoint.bench.lifecycle.models.add(registration.key), "the test")
    with endpoint.bench.backend.holding("a"):
        asked = pool.submit(endpoint.bench.ask, "a")
        until(lambda: endpoint.bench.backend.loads == ["a:1=1"] * 2)
        endpoint.models.unload("a")
    with pytest.raises(ModelNotFound):
        asked.result(LIMIT_S)
    assert endpoint.names() == []


def test_model_stays_after_a_failed_unload(endpoint: Endpoint) -> None:
    endpoint.unpack("a", 1)
    endpoint.load("a")
    endpoint.bench.engine.begin_exit()
    with pytest.raises(ServerError, match="Server not ready"):
        endpoint.models.unload("a")
    assert endpoint.names() == ["a"]


def test_loaded_model_stays_until_it_is_unloaded(tmp_path: Path) -> None:
    with living(control_mode="demand", model_idle_s=0.001, poll_secs=0.001) as bench:
        endpoint = Endpoint(tmp_path, bench)
        endpoint.unpack("a", 1)
        endpoint.load("a")
        demand = bench.lifecycle.demand
        assert demand is not None
        for _ in range(3):
            demand.look()
            demand.look_for_names(Repositories([]))
        assert bench.ask("a") == 1
        assert bench.backend.loads == ["a:1=1"]


def test_a_registered_model_is_loaded_by_the_start(tmp_path: Path) -> None:
    """State that a restarted engine receives from its predecessor."""
    write(tmp_path / "a", "model", 1)
    with unstarted(control_mode="demand") as bench:
        bench.engine.load_directory("a", f"{tmp_path}/a/model", "origin")
        assert bench.engine.directories() == {"a": "origin"}
        assert bench.backend.loads == []
        bench.engine.start()
        assert bench.engine.wait_loaded(LIMIT_S)
        assert bench.ask("a") == 1
        assert bench.backend.loads == ["a:1=1"]


def test_out_of_memory_of_a_step_is_that_of_the_ensemble(tmp_path: Path) -> None:
    """The platform unloads another model after such an error, and after no other."""
    write(tmp_path / "e" / "model", "a", "1".ljust(1000))
    put(tmp_path / "e" / "model" / "e" / "config.pbtxt", ENSEMBLE)
    (tmp_path / "e" / "model" / "e" / "1").mkdir()
    budget = ModelBudget(MemoryShare(bytes=100), resident=lambda: 0, host=lambda: None)
    memory = MemoryLedger(lambda devices: {}, {}, budget=budget)
    with living(control_mode="demand", memory=memory) as bench:
        with pytest.raises(OutOfMemory, match=r"ensemble 'e' depends on 'a'"):
            Endpoint(tmp_path, bench).load("e")
        assert bench.engine.directories() == {}


def loaded(endpoint: Endpoint, count: int) -> LoadedModels:
    """The registry, with models m0, m1, …"""
    for number in range(count):
        endpoint.unpack(f"m{number}", number)
        endpoint.load(f"m{number}")
    return endpoint.models


def test_a_page_continues_after_an_unloaded_model(endpoint: Endpoint) -> None:
    models = loaded(endpoint, 5)
    _, token = models.page(None, 2)
    models.unload("m0")
    models.unload("m1")  # the model whose name the token encodes
    models.unload("m3")
    page, token = models.page(token, 2)
    assert ([name for name, _ in page], token) == (["m2", "m4"], None)


@pytest.mark.parametrize("token", ["!", "m1", "a", "Li4", "YS9i", "/w==", "-w", "é", "x" * 5000])
def test_invalid_tokens_are_refused(endpoint: Endpoint, token: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^invalid next_page_token$"):
        endpoint.models.page(token)


# --- the log


def test_the_log_names_the_folder_and_the_archive_of_a_model(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder = endpoint.unpack("a1b2", 1)
    endpoint.load("a1b2")
    for _ in range(2):
        endpoint.models.note_archive("a1b2", "cats.tar.gz")
    endpoint.models.unload("a1b2")
    put(folder / "1" / "model.fake", BROKEN)
    with pytest.raises(ServerError):
        endpoint.load("a1b2")
    origin = f"{endpoint.url('a1b2')} (archive 'cats.tar.gz')"
    named, unloaded, failed = [line for line in caplog.messages if "archive" in line]
    assert named == "model 'a1b2' is the one from the archive 'cats.tar.gz'"
    assert unloaded == f"model 'a1b2' from {origin} was unloaded"
    assert failed.startswith(f"model 'a1b2' was not loaded from {origin}: ")


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
def test_link_out_of_the_folder_is_refused(tmp_path: Path, target: str) -> None:
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
    def load_directory(self, name: str, directory: str, origin: str) -> None:
        super().load_directory(name, directory, origin)
        self.versions[name] = (1,)


class Container:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.engine = Engine()
        settings = SageMakerSettings(multi_model=True, models_root=str(root), ping_mode=PingMode.LIVE)
        self.application = SageMakerApplication(host_of(self.engine), settings)
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
def test_model_name_with_a_path_is_refused(bench: Container, name: str) -> None:
    for method, path in (("DELETE", ""), ("POST", "/invoke")):
        assert bench.open(f"/models/{name}{path}", method=method).status_code in (400, 404)
    assert bench.engine.calls == []


def test_a_failed_load_answers_400_with_the_reason(bench: Container) -> None:
    bench.engine.refusal = OutOfMemory("no memory left")
    answer = bench.load("m")
    assert (answer.status_code, answer.json) == (507, {"error": "no memory left"})
    bench.engine.refusal = ModelLoadFailed("the file is not a model", hint="export it again")
    answer = bench.load("m")
    assert (answer.status_code, answer.json) == (400, {"error": "the file is not a model"})
    assert answer.headers["Trident-Hint"] == "export it again"
    bench.engine.refusal = None
    assert bench.load("m").status_code == 200
