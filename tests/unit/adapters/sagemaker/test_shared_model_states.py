"""The states of models that two front ends share, and what is left when one of them dies."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.core.lifecycle.lifecycle_bench import LIMIT_S, Bench, living, write
from tests.waiting import until
from trident.adapters.sagemaker.memory import MemoryBudget
from trident.adapters.sagemaker.model_states import ModelStates
from trident.adapters.sagemaker.multi_model import LoadedModels
from trident.core.errors import AlreadyLoaded, ModelNotFound


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
