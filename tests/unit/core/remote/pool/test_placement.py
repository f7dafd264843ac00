"""Models that live on one engine each: which one that is, changes to them, and the loss of an engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.core.remote.pool.pool_parts import Served, pooled
from tests.unit.core.remote.remote_parts import SMALL, ServedEngine, ask, numbers
from tests.waiting import until
from trident.core.errors import ModelLoadFailed, ModelNotFound
from trident.core.remote.calls import EngineGone
from trident.core.remote.control_log import ControlLog, Restoration, own_changes
from trident.core.remote.pool import EnginePool


class Models(ServedEngine):
    """An engine that has the models which it has loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.versions = {}

    def load_directory(self, name: str, directory: str) -> None:
        super().load_directory(name, directory)
        self.versions[name] = (1,)
        self.generation += 1

    def unload_model(self, name: str, unload_dependents: bool, *, wait: bool = False) -> None:
        super().unload_model(name, unload_dependents)
        self.versions.pop(name, None)
        self.generation += 1


@pytest.fixture
def engines() -> list[Models]:
    return [Models(), Models()]


@pytest.fixture
def pool(engines: list[Models], tmp_path: Path) -> Iterator[tuple[EnginePool, list[Served]]]:
    with pooled(tmp_path, engines, by_model=True) as found:
        yield found


def names(engines: list[Models]) -> list[list[str]]:
    return [sorted(engine.versions) for engine in engines]


def test_a_model_goes_to_the_engine_with_the_fewest(
    pool: tuple[EnginePool, list[Served]], engines: list[Models]
) -> None:
    for name in "abc":
        pool[0].load_directory(name, f"/{name}")
    assert names(engines) == [["a", "c"], ["b"]]
    pool[0].unload_model("a", True, wait=True)
    pool[0].unload_model("c", True, wait=True)
    assert names(engines) == [[], ["b"]]
    pool[0].load_directory("b", "/other")  # a model that is there stays where it is
    pool[0].load_directory("d", "/d")
    assert names(engines) == [["d"], ["b"]]


def test_its_engine_gets_the_requests_of_a_model(pool: tuple[EnginePool, list[Served]], engines: list[Models]) -> None:
    for name in ("other", "simple"):
        pool[0].load_directory(name, f"/{name}")
    for _ in range(4):
        assert ask(pool[0], numbers(SMALL)).get().error is None
    assert pool[0].is_model_ready("simple")
    assert pool[0].model_metadata("simple").name == "simple"
    with pytest.raises(ModelNotFound):
        pool[0].model("none")
    with pytest.raises(ModelNotFound):
        pool[0].is_model_ready("none")


def test_a_load_that_fails_leaves_nothing(pool: tuple[EnginePool, list[Served]], engines: list[Models]) -> None:
    for engine in engines:
        engine.refusal = ModelLoadFailed("the weights are broken")
    with pytest.raises(ModelLoadFailed, match="the weights are broken"):
        pool[0].load_directory("a", "/a")
    for engine in engines:
        engine.refusal = None
    pool[0].load_directory("b", "/b")
    assert names(engines) == [["b"], []]
    pool[0].unload_model("none", True)  # no error, as in one engine


def test_the_models_of_a_lost_engine_come_back_with_the_next_one(
    pool: tuple[EnginePool, list[Served]], engines: list[Models], tmp_path: Path
) -> None:
    for name in "abcd":
        pool[0].load_directory(name, f"/{name}")
    pool[1][0].end()
    until(lambda: len(pool[0].process_ids()) == 1)
    # It says that the model will be there again, and not that there is none.
    with pytest.raises(EngineGone):
        pool[0].model("a")
    with pytest.raises(EngineGone):
        pool[0].is_model_ready("c")
    assert pool[0].is_model_ready("b")
    pool[0].unload_model("c", True, wait=True)  # its memory is free
    pool[0].load_directory("e", "/e")
    assert names(engines)[1] == ["b", "d", "e"]
    engines[0].versions.clear()
    restoration = Restoration(engines[0], ControlLog(own_changes(tmp_path / "changes", 0)))
    restoration.repeat(of_models=True)
    assert names(engines)[0] == ["a"]
    pool[1][0].begin()
    until(lambda: len(pool[0].process_ids()) == 2)
    assert pool[0].is_model_ready("a")
    # What is unloaded between two looks at the log leaves the engine as well.
    pool[0].unload_model("a", True, wait=True)
    engines[0].versions["a"] = (1,)
    restoration.repeat(of_models=True)
    assert names(engines)[0] == []
