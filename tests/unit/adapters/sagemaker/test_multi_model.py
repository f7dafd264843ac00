"""The models of a multi-model endpoint, on real engines."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from onnx import helper
from werkzeug.test import Client

from tests.project import ROOT as CHECKOUT
from tests.project import pure_python_only
from tests.unit import onnx_models
from tests.unit.backend_serving import tensor_text
from tests.unit.core.engine.test_in_process import CONFIG, infer, ones, serving
from tests.unit.core.lifecycle.lifecycle_bench import BROKEN, LIMIT_S, Bench, living, put, write
from tests.unit.fake_engine import FakeEngine
from tests.waiting import until
from trident.adapters.sagemaker.application import SageMakerApplication
from trident.adapters.sagemaker.memory import HOST, MemoryBudget
from trident.adapters.sagemaker.model_states import LoadedModel, ModelStates
from trident.adapters.sagemaker.multi_model import LONGEST_NAME, LoadedModels, check_name, check_url, folder_of
from trident.adapters.sagemaker.settings import PingMode, SageMakerSettings
from trident.app.process.heap import keep_freed_memory
from trident.core.errors import (
    AlreadyLoaded,
    ErrorCode,
    InvalidRequest,
    ModelLoadFailed,
    ModelNotFound,
    OutOfMemory,
    ServerError,
)
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.front_end import HttpOptions
from trident.core.http.metrics import MetricsPage
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.observability.hardware import MemoryState, resident_bytes, trim_heap

MIB = 1 << 20
GIB = 1 << 30


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


def test_two_models_may_have_the_same_name_inside(endpoint: Endpoint) -> None:
    for name, weight in (("a1-b2", 3), ("c3", 5)):
        write(endpoint.root / name / "model", "same", weight)
        endpoint.load(name)
    assert (endpoint.ask("a1-b2"), endpoint.ask("c3")) == (3, 5)
    url = endpoint.url("c3")
    assert endpoint.models.get("c3") == LoadedModel("c3", url)
    endpoint.models.unload("a1-b2")
    assert endpoint.names() == ["c3"]
    assert endpoint.ask("c3") == 5
    with pytest.raises(ModelNotFound, match=r"^model 'a1-b2' is not loaded$"):
        endpoint.ask("a1-b2")


def test_the_url_is_returned_as_sent(endpoint: Endpoint) -> None:
    write(endpoint.root / "x" / "model", "sub", 3)
    url = f"{endpoint.root}/x/model/sub/"
    endpoint.models.load("name", url)
    assert endpoint.models.get("name").url == url
    assert endpoint.ask("name") == 3


def test_loading_a_loaded_model_is_a_conflict(endpoint: Endpoint) -> None:
    endpoint.unpack("a", 1)
    endpoint.load("a")
    with pytest.raises(AlreadyLoaded, match=r"^model 'a' is loaded already$") as caught:
        endpoint.load("a")
    assert caught.value.code is ErrorCode.ALREADY_EXISTS
    assert endpoint.ask("a") == 1


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


def test_different_models_load_side_by_side(endpoint: Endpoint, pool: ThreadPoolExecutor) -> None:
    endpoint.unpack("slow", 1)
    endpoint.unpack("quick", 2)
    with endpoint.bench.backend.holding("slow"):
        slow = pool.submit(endpoint.load, "slow")
        until(lambda: endpoint.bench.backend.loads == ["slow:1=1"])
        endpoint.load("quick")
        assert endpoint.ask("quick") == 2
        endpoint.models.unload("quick")
    slow.result(LIMIT_S)
    assert endpoint.names() == ["slow"]


def test_an_unload_waits_for_the_load(endpoint: Endpoint, pool: ThreadPoolExecutor) -> None:
    endpoint.unpack("a", 1)
    with endpoint.bench.backend.holding("a"):
        load = pool.submit(endpoint.load, "a")
        until(lambda: endpoint.bench.backend.loads == ["a:1=1"])
        unload = pool.submit(endpoint.models.unload, "a")
        until(lambda: waiting("unload") == 1)
    load.result(LIMIT_S)
    unload.result(LIMIT_S)
    assert endpoint.names() == []
    assert endpoint.bench.backend.models[0].is_closed


def test_an_unload_during_a_failing_load_is_not_found(endpoint: Endpoint, pool: ThreadPoolExecutor) -> None:
    endpoint.unpack("a", BROKEN)
    with endpoint.bench.backend.holding("a"):
        load = pool.submit(endpoint.load, "a")
        until(lambda: endpoint.bench.backend.loads != [])
        unload = pool.submit(endpoint.models.unload, "a")
        until(lambda: waiting("unload") == 1)
    with pytest.raises(ServerError, match="the weights are broken"):
        load.result(LIMIT_S)
    with pytest.raises(ModelNotFound):
        unload.result(LIMIT_S)


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


def test_a_load_waits_for_an_unload(endpoint: Endpoint, pool: ThreadPoolExecutor) -> None:
    endpoint.unpack("a", 1)
    endpoint.load("a")
    with endpoint.bench.running("a") as responses:
        unload = pool.submit(endpoint.models.unload, "a")
        until(lambda: endpoint.names() == [])
        with pytest.raises(ModelNotFound) as caught:
            endpoint.models.get("a")
        assert caught.value.hint == "it is being unloaded"
        load = pool.submit(endpoint.load, "a")
        until(lambda: waiting("load") == 1)
        assert endpoint.bench.backend.loads == ["a:1=1"]
    unload.result(LIMIT_S)
    load.result(LIMIT_S)
    assert responses.get(timeout=LIMIT_S).error is None  # requests in flight are answered
    assert [model.is_closed for model in endpoint.bench.backend.models] == [True, False]
    assert endpoint.ask("a") == 1


def test_an_unload_waits_for_another_unload(endpoint: Endpoint, pool: ThreadPoolExecutor) -> None:
    endpoint.unpack("a", 1)
    endpoint.load("a")
    with endpoint.bench.running("a"):
        first = pool.submit(endpoint.models.unload, "a")
        until(lambda: endpoint.names() == [])
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


def test_an_unknown_model_is_not_found(endpoint: Endpoint) -> None:
    for ask in (endpoint.models.get, endpoint.ask, endpoint.models.unload):
        with pytest.raises(ModelNotFound, match=r"^model 'none' is not loaded$"):
            ask("none")


def test_a_failed_load_leaves_the_model_unknown(endpoint: Endpoint) -> None:
    folder = endpoint.unpack("a", BROKEN)
    with pytest.raises(ServerError, match="the weights are broken"):
        endpoint.load("a")
    with pytest.raises(InvalidRequest, match="there is no folder"):
        endpoint.load("none")
    assert endpoint.names() == []
    assert endpoint.bench.engine.repository_index(False) == []
    assert endpoint.bench.engine.is_ready()
    put(folder / "1" / "model.fake", "7")
    endpoint.load("a")
    assert endpoint.ask("a") == 7


def test_names_cannot_leave_their_folder_by_a_load(endpoint: Endpoint) -> None:
    endpoint.unpack("a", 1)
    for name, url in (("../a", endpoint.url("a")), ("a", f"{endpoint.root}/../models/a/model"), ("a", "/dev/model")):
        with pytest.raises(InvalidRequest):
            endpoint.models.load(name, url)
    assert endpoint.bench.backend.loads == []


def loaded(endpoint: Endpoint, count: int) -> LoadedModels:
    """The registry, with models m0, m1, …"""
    for number in range(count):
        endpoint.unpack(f"m{number}", number)
        endpoint.load(f"m{number}")
    return endpoint.models


def pages(models: LoadedModels, limit: int) -> list[list[str]]:
    found = []
    token: str | None = None
    while True:
        page, token = models.names_after(token, limit)
        found.append([model.name for model in page])
        if token is None:
            return found


def test_pages_list_every_model_once(endpoint: Endpoint) -> None:
    assert endpoint.models.names_after(None) == ([], None)
    models = loaded(endpoint, 5)
    assert pages(models, 2) == [["m0", "m1"], ["m2", "m3"], ["m4"]]
    assert pages(models, 5) == [["m0", "m1", "m2", "m3", "m4"]]
    assert pages(models, 1) == [["m0"], ["m1"], ["m2"], ["m3"], ["m4"]]
    assert models.names_after("") == models.names_after(None)


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


def test_a_limit_below_one_is_refused(endpoint: Endpoint) -> None:
    with pytest.raises(InvalidRequest, match="limit must be at least 1, not 0"):
        endpoint.models.names_after(None, 0)


def test_a_load_succeeds_after_an_eviction(tmp_path: Path) -> None:
    """The container has 1 GiB, and each model needs 400 MiB."""
    with living(control_mode="explicit") as bench:

        def room() -> MemoryState:
            return MemoryState(GIB, GIB - 400 * MIB * len(full.names()))

        full = Endpoint(tmp_path, bench, MemoryBudget(room))
        for number in range(3):
            with open(full.unpack(f"m{number}", number) / "1" / "weights", "wb") as weights:
                weights.truncate(300 * MIB)  # a hole that uses no disk space
        full.load("m0")
        full.load("m1")
        with pytest.raises(OutOfMemory, match=r"^out of memory: model 'm2' needs about 466 MiB of container memory"):
            full.load("m2")
        assert full.names() == ["m0", "m1"]
        full.models.unload("m0")
        full.load("m2")
        assert (full.ask("m1"), full.ask("m2")) == (1, 2)


@pytest.mark.parametrize("layout", ["model", "model/1", "model/inner", "model/inner/1"])
def test_real_models_load_in_every_layout(tmp_path: Path, layout: str) -> None:
    onnx_models.write(onnx_models.add_sub(), tmp_path / "models" / "hash" / layout / "model.onnx")
    if "inner" in layout:
        put(tmp_path / "models" / "hash" / "model" / "inner" / "config.pbtxt", 'name: "other"' + CONFIG)
    (tmp_path / "repository").mkdir()
    with serving(tmp_path / "repository", control_mode="explicit") as engine:
        models = LoadedModels(engine, str(tmp_path / "models"), MemoryBudget())
        models.load("hash", f"{tmp_path}/models/hash/model")
        assert infer(engine, models.get("hash").name, ones(), ones()).error is None


def test_memory_that_runs_out_during_a_load_is_out_of_memory(tmp_path: Path) -> None:
    """The model's warmup allocates more than the machine has."""
    onnx_models.write(onnx_models.allocating(), tmp_path / "hash" / "model" / "1" / "model.onnx")
    warmup = (
        'model_warmup { name: "w" batch_size: 1 inputs { key: "SIZE" '
        'value { data_type: TYPE_INT64 dims: [ 1 ] input_data_file: "size" } } }'
    )
    tensors = tensor_text("input", "SIZE", "INT64", [1]) + tensor_text("output", "ZEROS", "FP32", [-1])
    put(tmp_path / "hash" / "model" / "config.pbtxt", tensors + warmup)
    put(tmp_path / "hash" / "model" / "warmup" / "size", np.array([1 << 46]).tobytes())
    with living(control_mode="explicit") as bench:
        endpoint = Endpoint(tmp_path, bench)
        with pytest.raises(OutOfMemory, match="Failed to allocate memory for requested buffer"):
            endpoint.load("hash")
        assert bench.engine.is_ready()


@pytest.mark.slow
def test_an_unload_returns_memory_to_the_system(tmp_path: Path) -> None:
    # In a new process: after other tests the weights may go into holes of the heap, which are not new memory.
    program = f"import {__name__} as tests, pathlib; tests.load_and_unload(pathlib.Path({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def load_and_unload(tmp_path: Path) -> None:
    weights = onnx_models.constant("W", np.ones((2048, 4096)), "FP32")
    node = helper.make_node("MatMul", ["INPUT0", "W"], ["OUTPUT0"])
    sides = [onnx_models.tensor("INPUT0", "FP32", ["b", 2048])], [onnx_models.tensor("OUTPUT0", "FP32", ["b", 4096])]
    onnx_models.write(onnx_models.build([node], *sides, [weights]), tmp_path / "hash" / "model" / "model.onnx")
    del weights
    keep_freed_memory()  # as the server does
    with living(control_mode="explicit") as bench:
        memory = MemoryBudget()
        endpoint = Endpoint(tmp_path, bench, memory)
        endpoint.load("hash")  # allocates what ONNX Runtime needs only once
        endpoint.models.unload("hash")
        trim_heap()
        before = resident_bytes()
        endpoint.load("hash")
        assert 24 * MIB < memory.taken(endpoint.url("hash"))[HOST] < 64 * MIB
        assert resident_bytes() > before + 24 * MIB
        endpoint.models.unload("hash")
        assert resident_bytes() < before + 12 * MIB


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
    lines = [message for message in caplog.messages if "a1b2" in message and not message.startswith("skipping")]
    assert [line for line in lines if endpoint.url("a1b2") not in line] == []
    archive = f"{endpoint.url('a1b2')} (archive 'cats.tar.gz')"
    assert [line for line in lines if "archive" in line] == [
        f"model 'a1b2' is the one from {archive}",
        f"model 'a1b2' from {archive} was unloaded",
        f"model 'a1b2' was not loaded from {archive}: load failed for model 'a1b2': version 1 is at UNAVAILABLE state: "
        "Internal: the weights are broken;",
    ]


def test_the_log_names_the_archive_of_a_load_without_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with living(control_mode="explicit") as bench:
        endpoint = Endpoint(tmp_path, bench, MemoryBudget(lambda: MemoryState(GIB, 0)))
        endpoint.unpack("a1b2", 1)
        with pytest.raises(OutOfMemory):
            endpoint.load("a1b2")
    (line,) = [message for message in caplog.messages if "a1b2" in message]
    assert line.startswith(
        f"model 'a1b2' was not loaded from {endpoint.url('a1b2')}: out of memory: model 'a1b2' needs"
    )


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


def test_a_change_in_one_is_known_to_the_other(front_ends: FrontEnds) -> None:
    front_ends.first.load("a", front_ends.put("a"))
    assert front_ends.second.get("a").url == front_ends.url("a")
    with pytest.raises(AlreadyLoaded, match="is loaded already"):
        front_ends.second.load("a", front_ends.url("a"))
    front_ends.second.unload("a")
    with pytest.raises(ModelNotFound), front_ends.first.invocation("a"):
        pass
    assert names(front_ends.first) == []


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


@pytest.mark.parametrize("name", ["a1b2c3", "with-hyphens", "v1.2_x", "..x", "größe", "x" * LONGEST_NAME])
def test_valid_folder_names_are_accepted(name: str) -> None:
    check_name(name)
    check_url(f"{ROOT}/{name}/model", ROOT)


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", "a/b", "/etc", "a\0b", "x" * (LONGEST_NAME + 1), "ß" * 128, "\ud800"]
)
def test_invalid_folder_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^invalid model_name '") as caught:
        check_name(name)
    caught.value.message.encode()  # the text can be sent
    with pytest.raises(InvalidRequest, match=r"^invalid url '"):
        check_url(f"{ROOT}/{name}/model", ROOT)


@pytest.mark.parametrize("rest", ["model", "model/", "model/sub", "model/sub/"])
def test_urls_below_the_root_are_accepted(rest: str) -> None:
    check_url(f"{ROOT}/hash/{rest}", ROOT)
    check_url(f"{ROOT}/hash/{rest}", f"{ROOT}/")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "model",
        ROOT,
        f"{ROOT}/",
        f"{ROOT}/hash",
        f"{ROOT}/hash/other",
        f"{ROOT}/hash/model/a/b",
        f"{ROOT}/hash//model",
        f"{ROOT}/../../etc/model",
        f"{ROOT}/hash/model/..",
        f"{ROOT}/./model",
        f"{ROOT}2/hash/model",
        "/dev/shm/model",
        "/opt/ml/model/hash/model",
        f"s3:/{ROOT}/hash/model",
        "x" * 100_000,
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match=f"it must be {ROOT}/<name>/model$") as caught:
        check_url(url, ROOT)
    assert len(caught.value.message) < 1000


def test_a_url_gives_its_folder(tmp_path: Path) -> None:
    (tmp_path / "hash" / "model" / "sub").mkdir(parents=True)
    assert folder_of(f"{tmp_path}/hash/model", str(tmp_path)) == tmp_path / "hash" / "model"
    assert folder_of(f"{tmp_path}/hash/model/sub/", str(tmp_path)) == tmp_path / "hash" / "model" / "sub"


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


V2 = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[2],"data":[1,2]}]}'


class Engine(FakeEngine):
    def load_directory(self, name: str, directory: str) -> None:
        super().load_directory(name, directory)
        self.versions[name] = (1,)


class Container:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.seen: list[InferenceRequest] = []
        self.engine = Engine(self._respond)
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

    def described(self, name: str) -> dict[str, str]:
        return {"modelName": name, "modelUrl": self.url(name)}

    def _respond(self, request: InferenceRequest) -> InferenceResponse:
        self.seen.append(request)
        array = np.array([1, 2], np.int32)
        return InferenceResponse(request.model_name, 1, [OutputTensor("OUT", "INT32", (2,), array)])


@pytest.fixture
def bench(tmp_path: Path) -> Container:
    return Container(tmp_path)


def test_a_model_is_loaded_listed_described_and_unloaded(bench: Container) -> None:
    assert bench.open("/models").json == {"models": []}
    answer = bench.load("abc")
    assert (answer.status_code, answer.data) == (200, b"")
    assert bench.open("/models/abc").json == bench.described("abc")
    assert bench.open("/models").json == {"models": [bench.described("abc")]}
    answer = bench.load("abc")
    assert (answer.status_code, list(answer.json)) == (409, ["error"])
    assert bench.open("/models/abc/invoke", method="POST", data=V2).status_code == 200
    answer = bench.open("/models/abc", method="DELETE")
    assert (answer.status_code, answer.data) == (200, b"")
    for path, method in (("/models/abc", "GET"), ("/models/abc", "DELETE"), ("/models/abc/invoke", "POST")):
        answer = bench.open(path, method=method, data=V2)
        assert (answer.status_code, list(answer.json)) == (404, ["error"])


def test_a_model_is_invoked_by_the_name_in_the_path(bench: Container) -> None:
    for name in ("a.b-1", "ünder score"):
        assert bench.load(name).status_code == 200
        answer = bench.open(
            f"/models/{name}/invoke", method="POST", data=V2, headers={"X-Amzn-SageMaker-Target-Model": "other.tar.gz"}
        )
        assert (answer.status_code, answer.json["outputs"][0]["data"]) == (200, [1, 2])
        assert bench.seen[-1].model_name == name
        assert bench.seen[-1].parameters == {"X-Amzn-SageMaker-Target-Model": "other.tar.gz"}
        assert bench.open(f"/models/{name}").json == bench.described(name)


@pure_python_only
def test_invocations_take_every_format_without_flask(bench: Container) -> None:
    bench.load("m")
    bench.application.wsgi_app = None  # type: ignore[method-assign, assignment]
    answer = bench.open(
        "/models/m/invoke", method="POST", data=b"1,2\n", content_type="text/csv", headers={"Accept": "text/csv"}
    )
    assert (answer.status_code, answer.mimetype) == (200, "text/csv")


def test_an_unload_between_the_requests_of_one_invocation_waits_for_it(bench: Container) -> None:
    """Each row is a request of a model that does not batch. The platform unloads it while the first one runs."""
    bench.load("m")
    deletion: list[Any] = []

    def unload() -> None:
        deletion.append(bench.open("/models/m", method="DELETE"))

    thread = threading.Thread(target=unload)

    def respond(request: InferenceRequest) -> InferenceResponse:
        bench.seen.append(request)
        if len(bench.seen) == 1:
            thread.start()
            until(lambda: bench.open("/models").json == {"models": []})
        if "unload" in [call[0] for call in bench.engine.calls]:
            return InferenceResponse(request.model_name, 1, [], error=ModelNotFound("it has no available versions"))
        return InferenceResponse(request.model_name, 1, [OutputTensor("OUT", "INT32", (1,), np.array([1], np.int32))])

    bench.engine.respond = respond
    rows = b"[[1,2],[3],[4,5,6]]"
    answer = bench.open("/models/m/invoke", method="POST", data=rows, content_type="application/json")
    assert (answer.status_code, answer.json, len(bench.seen)) == (200, [[1]] * 3, 3)
    thread.join(LIMIT_S)
    assert deletion[0].status_code == 200
    assert bench.engine.calls[-1] == ("unload", "m", True)


def test_pages_follow_their_tokens(bench: Container) -> None:
    names = [f"m{n:03}" for n in range(7)]
    for name in names:
        bench.load(name)
    found, token, pages = [], "", 0
    while pages == 0 or token:
        page = bench.open("/models", query_string={"limit": 3, "next_page_token": token}).json
        assert len(page["models"]) <= 3
        found += [one["modelName"] for one in page["models"]]
        token = page.get("nextPageToken", "")
        pages += 1
    assert (found, pages) == (names, 3)
    assert len(bench.open("/models").json["models"]) == 7


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
    assert (answer.status_code, list(answer.json)) == (400, ["error"])
    assert bench.engine.calls == []


def test_a_load_body_over_the_fixed_limit_names_no_option(bench: Container) -> None:
    answer = bench.open("/models", method="POST", data=b" " * 65537)
    assert answer.json["error"] == (
        "request JSON size of 65537 bytes exceeds the maximum allowed input size of 65536 bytes. "
        "The limit of this route is fixed."
    )


def test_a_missing_model_is_404(bench: Container) -> None:
    answer = bench.open("/models", method="POST", json={"model_name": "gone", "url": bench.url("gone")})
    assert (answer.status_code, "there is no folder" in answer.json["error"]) == (400, True)


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


def test_names_in_paths_cannot_leave_their_folder(bench: Container) -> None:
    for name in ("..", "%2e%2e", "a%2Fb", "%00"):
        assert bench.open(f"/models/{name}").status_code == 404
        assert bench.open(f"/models/{name}", method="DELETE").status_code == 404


def test_ping_answers_200_without_any_model(bench: Container) -> None:
    assert bench.open("/ping").status_code == 200
