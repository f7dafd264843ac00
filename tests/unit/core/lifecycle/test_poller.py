"""Poll mode: the server follows changes in the repositories, and keeps the old models when the new ones are broken."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.unit.core.lifecycle.lifecycle_bench import BROKEN, CONFIG, LIMIT_S, Bench, living, put, write
from tests.waiting import until
from trident.core.errors import InvalidRequest, ModelNotFound, ModelNotReady
from trident.core.lifecycle.lifecycle import seconds_until_poll
from trident.core.lifecycle.options import EnginePlace

NOT_UNIQUE = "model appears in two or more repositories"

polling = partial(living, control_mode="poll")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A server on a repository with model `m` of weight 1."""
    write(tmp_path, "m", 1)
    with polling(tmp_path) as bench:
        yield bench


def test_a_failed_model_that_is_removed_leaves_the_index(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    for name, weight, config in (("broken", BROKEN, CONFIG), ("typo", "1", "max_batch_sise: 8")):
        write(tmp_path, name, weight, config=config)
    with polling(tmp_path) as bench:
        assert not bench.engine.is_ready()
        shutil.rmtree(tmp_path / "broken")
        bench.poll()
        assert not bench.engine.is_ready()
        shutil.rmtree(tmp_path / "typo")
        bench.poll()
        assert bench.index() == ["m 1 READY"]
        assert bench.engine.is_ready()


def test_a_repository_that_vanishes_keeps_its_models(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write(first, "m", 1)
    write(first, "typo", 1, config="max_batch_sise: 8")
    write(second, "other", 1)
    with polling(first, second) as bench:
        before = bench.index()
        first.rename(tmp_path / "away")
        put(second / "other" / "1" / "model.fake", "2")
        bench.poll()
        assert bench.index() == before
        assert not bench.engine.is_ready()
        assert (bench.ask("m"), bench.ask("other")) == (1, 2)
        (tmp_path / "away").rename(first)
        put(first / "m" / "1" / "model.fake", "3")
        bench.poll()
        assert bench.index() == before
        assert bench.ask("m") == 3


@pytest.mark.parametrize("removed", ["copy", "original"])
def test_a_model_that_is_copied_into_another_repository_is_unloaded(tmp_path: Path, removed: str) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write(first, "m", 1)
    second.mkdir()
    with polling(first, second) as bench:
        shutil.copytree(first / "m", second / "m")
        bench.poll()
        bench.poll()
        assert bench.index() == [f"m UNAVAILABLE {NOT_UNIQUE}"]
        assert bench.engine.is_ready()
        with pytest.raises(ModelNotReady, match=NOT_UNIQUE):
            bench.ask("m")
        shutil.rmtree((second if removed == "copy" else first) / "m")
        bench.poll()
        assert bench.index() == ["m 1 READY"]
        assert bench.ask("m") == 1
        assert bench.backend.loads == ["m:1=1", "m:1=1"]
        bench.poll()
        assert len(bench.backend.loads) == 2


def test_a_model_waits_for_a_thread_once_however_often_it_changes(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    write(tmp_path, "other", 1)
    with polling(tmp_path, load_threads=1) as bench:
        with bench.backend.holding("m"):
            put(tmp_path / "m" / "1" / "model.fake", "2")
            bench.lifecycle.poll()
            until(lambda: bench.backend.loads[-1] == "m:1=2")
            for weight in ("2", "3", BROKEN):
                put(tmp_path / "other" / "1" / "model.fake", weight)
                write(tmp_path, "gone", 1)
                bench.lifecycle.poll()
            assert len(bench.lifecycle._threads._waiting) == 2
            shutil.rmtree(tmp_path / "gone")
            bench.lifecycle.poll()
        assert bench.lifecycle._threads.wait_idle(LIMIT_S)
        assert [load for load in bench.backend.loads if not load.startswith("m:")][1:] == ["other:1=broken"]
        assert bench.index() == ["m 1 READY", "other 1 READY Internal: the weights are broken"]


def test_with_namespaces_a_name_is_unique_again_when_the_other_model_is_gone(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write(first, "m", 1)
    write(second, "m", 2)
    with polling(first, second, namespacing=True) as bench:
        with pytest.raises(InvalidRequest, match="There are 2 identifiers of model 'm'"):
            bench.ask("m")
        shutil.rmtree(second / "m")
        bench.poll()
        assert bench.ask("m") == 1
        shutil.rmtree(first / "m")
        bench.poll()
        with pytest.raises(ModelNotFound, match="'m' has no available versions"):
            bench.ask("m")


def test_the_repositories_are_polled_repeatedly(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with polling(tmp_path, poll_secs=0.01) as bench:
        for weight in ("2", "3"):
            put(tmp_path / "m" / "1" / "model.fake", weight)
            until(lambda weight=weight: bench.ask("m") == int(weight))  # type: ignore[misc]


def test_a_failing_model_is_retried_less_and_less_often_and_at_once_when_it_changes(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "m" / "1" / "model.fake", BROKEN)
    for _ in range(16):
        bench.poll()
    failures = sum("failed to load 'm' version 1" in record.getMessage() for record in caplog.records)
    assert 3 <= failures <= 5
    assert bench.ask("m") == 1
    put(tmp_path / "m" / "1" / "model.fake", "2")
    bench.poll()
    assert bench.ask("m") == 2


def test_several_engines_poll_at_the_same_moments_whenever_they_started() -> None:
    first, second = EnginePlace(0, 2), EnginePlace(1, 2)
    for now_s in (120.0, 121.5, 134.9):
        assert now_s + seconds_until_poll(15, first, now_s) == 135
    assert 122.0 + seconds_until_poll(15, second, 122.0) == 135
    assert seconds_until_poll(15, EnginePlace(), 122.0) == 15
