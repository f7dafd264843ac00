"""The models of a multi-model endpoint, on real engines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from onnx import helper

from tests.unit import onnx_models
from tests.unit.backend_serving import tensor_text
from tests.unit.core.engine.test_in_process import CONFIG, infer, ones, serving
from tests.unit.core.lifecycle.lifecycle_bench import BROKEN, LIMIT_S, Bench, living, put, write
from tests.waiting import until
from trident.adapters.sagemaker.memory import HOST, MemoryBudget
from trident.adapters.sagemaker.model_states import LoadedModel, ModelStates
from trident.adapters.sagemaker.multi_model import LoadedModels
from trident.app.process.heap import keep_freed_memory
from trident.core.errors import AlreadyLoaded, ErrorCode, InvalidRequest, ModelNotFound, OutOfMemory, ServerError
from trident.core.observability.hardware import MemoryRoom, resident_bytes, trim_heap

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

        def room() -> MemoryRoom:
            return MemoryRoom(GIB, GIB - 400 * MIB * len(full.names()))

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
    weights = onnx_models.constant("W", np.ones((2048, 4096)), "FP32")
    node = helper.make_node("MatMul", ["INPUT0", "W"], ["OUTPUT0"])
    sides = [onnx_models.tensor("INPUT0", "FP32", ["b", 2048])], [onnx_models.tensor("OUTPUT0", "FP32", ["b", 4096])]
    onnx_models.write(onnx_models.build([node], *sides, [weights]), tmp_path / "hash" / "model" / "model.onnx")
    del weights
    keep_freed_memory()  # as the server does: otherwise the weights may go into holes of this process's heap
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
        endpoint = Endpoint(tmp_path, bench, MemoryBudget(lambda: MemoryRoom(GIB, 0)))
        endpoint.unpack("a1b2", 1)
        with pytest.raises(OutOfMemory):
            endpoint.load("a1b2")
    (line,) = [message for message in caplog.messages if "a1b2" in message]
    assert line.startswith(
        f"model 'a1b2' was not loaded from {endpoint.url('a1b2')}: out of memory: model 'a1b2' needs"
    )
