"""Loading versions of models, slots for loads, and their counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.core.lifecycle.lifecycle_bench import (
    BROKEN,
    MORE_INSTANCES,
    Bench,
    FakeBackend,
    FakeModel,
    living,
    put,
    registry_of,
    write,
)
from trident.core.backends.backend import LoadContext
from trident.core.errors import ModelLoadFailed, ModelNotFound, OutOfMemory, ServerError
from trident.core.lifecycle.attempt import LoadAttempt, LoadSlots
from trident.core.lifecycle.loader import ModelLoader
from trident.core.lifecycle.options import EngineOptions
from trident.core.lifecycle.reader import Prepared
from trident.core.lifecycle.state import UNLOADED, LoadCause, LoadCounts
from trident.core.lifecycle.version import EngineParts, ModelVersion
from trident.core.repository.repository import ModelDirectory
from trident.core.repository.sources import Fetched, LocalSource, Located, ModelKey, SourceFile


class CountingSource(LocalSource):
    """`held` is the number of fetches that were not released."""

    held = 0

    def fetch(self, model: str, files: Sequence[SourceFile], version: int | None) -> Fetched:
        self.held += 1
        return Fetched(ModelDirectory(model, self.path / model), self._release)

    def _release(self) -> None:
        self.held -= 1


class Flaky(FakeBackend):
    """Each load fails with the next of `failures` until none is left."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__()
        self._failures = list(failures)

    def load(self, context: LoadContext) -> FakeModel:
        model = super().load(context)
        if self._failures:
            model.is_closed = True
            raise self._failures.pop(0)
        return model


class OneInstance(FakeBackend):
    """Its models make only one instance."""

    def load(self, context: LoadContext) -> FakeModel:
        model = super().load(context)
        model.limit = 1
        return model


@pytest.fixture
def source(tmp_path: Path) -> Iterator[CountingSource]:
    source = CountingSource(tmp_path)
    yield source
    assert source.held == 0


def loader_of(backend: FakeBackend, **options: object) -> ModelLoader:
    return ModelLoader(EngineOptions(repositories=(), **options), registry_of(backend), EngineParts())  # type: ignore[arg-type]


def located(source: LocalSource, name: str = "m") -> Located:
    return Located(ModelKey(name), source, tuple(source.files(name) or ()))


def no_version(name: str, version: int) -> ModelVersion:
    raise ModelNotFound(name)


def load(loader: ModelLoader, prepared: Prepared) -> ModelVersion:
    """The version after the load; it is unloaded again if it was ready."""
    version = ModelVersion("m", 1, "a test", no_version)
    loader.load(prepared, version, lambda name, steps: [])
    if version.is_ready:
        version.begin_unload("the test is over")
        version.finish_unload()
    return version


def test_instances_are_closed_when_a_later_one_fails(source: CountingSource) -> None:
    write(source.path, "m", 1, config=MORE_INSTANCES)
    backend = OneInstance()
    loader = loader_of(backend)
    version = load(loader, loader.reader.prepare(located(source)))
    assert version.state.reason == "Internal: no memory"
    (model,) = backend.models
    assert model.is_closed
    assert [instance.is_closed for instance in model.instances] == [True]


def test_a_load_is_retried_as_often_as_the_options_allow(source: CountingSource) -> None:
    write(source.path, "m", 1)
    failures = [ServerError("first"), RuntimeError("a bug"), KeyError()]
    for retries, reason in ((1, "Internal: a bug"), (2, "Internal: KeyError"), (3, UNLOADED)):
        backend = Flaky(*failures)
        loader = loader_of(backend, load_retries=retries)
        version = load(loader, loader.reader.prepare(located(source)))
        assert version.state.reason == reason
        assert len(backend.loads) == retries + 1


def test_load_waiting_for_another_releases_its_slot() -> None:
    slots = LoadSlots(1)
    with slots.taken("asker", LoadAttempt("asker")), ThreadPoolExecutor(2) as threads:

        def ask(name: str) -> str:
            with slots.released("asker", name), slots.taken(name, LoadAttempt(name)):
                return name

        assert sorted(threads.map(ask, ["one", "two"])) == ["one", "two"]
    with slots.taken("next", LoadAttempt("next")):
        pass


def test_a_model_cannot_wait_for_its_own_load() -> None:
    slots = LoadSlots(2)
    with slots.taken("a", LoadAttempt("a")), slots.taken("b", LoadAttempt("b")), slots.released("a", "b"):
        for asker, asked in (("a", "a"), ("b", "a")):
            with (
                pytest.raises(ModelLoadFailed, match=f"model '{asker}' cannot ask for '{asked}'"),
                slots.released(asker, asked),
            ):
                pass
        with (
            slots.released("b", "c"),
            pytest.raises(ModelLoadFailed),
            slots.taken("c", LoadAttempt("c")),
            slots.released("c", "a"),
        ):
            pass


def counted(counts: LoadCounts) -> dict[tuple[str, str], int]:
    return {(each.cause, each.result): each.count for each in counts.metrics() if each.count}


def test_a_lack_of_memory_is_counted_apart_from_other_failures() -> None:
    counts = LoadCounts()
    for error in (OutOfMemory("no room"), ServerError("broken"), ValueError("a bug")):
        with pytest.raises(type(error)), counts.counting(LoadCause.REQUEST):
            raise error
    assert counted(counts) == {("request", "out_of_memory"): 1, ("request", "failure"): 2}


def states(bench: Bench) -> list[str]:
    return [f"{each.model} {each.version} {each.state}" for each in bench.engine.metrics().states]


def test_loads_of_the_start_and_of_polls_are_counted(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    write(tmp_path, "bad", BROKEN)
    write(tmp_path, "typo", 1, config="max_batch_sise: 8")
    with living(tmp_path, control_mode="poll") as bench:
        counts = bench.lifecycle.loads.counts
        assert counted(counts) == {("start", "success"): 1, ("start", "failure"): 2}
        assert states(bench) == ["bad 1 UNAVAILABLE", "m 1 READY", "typo  UNAVAILABLE"]
        put(tmp_path / "m" / "2" / "model.fake", BROKEN)
        put(tmp_path / "bad" / "1" / "model.fake", "2")
        put(tmp_path / "typo" / "config.pbtxt", "max_batch_sise: 9")
        bench.poll()
        assert counted(counts) == {
            ("start", "success"): 1,
            ("start", "failure"): 2,
            ("poll", "success"): 1,
            ("poll", "failure"): 2,
        }
        assert states(bench) == ["bad 1 READY", "m 1 READY", "m 2 UNAVAILABLE", "typo  UNAVAILABLE"]
