"""Poll mode: the server follows changes in the repositories, and keeps the old models when the new ones are broken."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.unit import onnx_models
from tests.unit.core.lifecycle.lifecycle_bench import BROKEN, CONFIG, LIMIT_S, MORE_INSTANCES, Bench, living, put, write
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


def test_a_poll_loads_new_models_reloads_changed_ones_and_unloads_removed_ones(bench: Bench, tmp_path: Path) -> None:
    write(tmp_path, "new", 5)
    put(tmp_path / "m" / "1" / "model.fake", "2")
    bench.poll()
    assert bench.index() == ["m 1 READY", "new 1 READY"]
    assert (bench.ask("m"), bench.ask("new")) == (2, 5)
    shutil.rmtree(tmp_path / "m")
    bench.poll()
    bench.until_index("m 1 UNAVAILABLE unloaded", "new 1 READY")
    with pytest.raises(ModelNotFound):
        bench.ask("m")
    assert bench.engine.is_ready()
    write(tmp_path, "m", 3)
    bench.poll()
    assert bench.ask("m") == 3


def test_a_model_that_is_removed_while_a_request_runs_answers_it(bench: Bench, tmp_path: Path) -> None:
    with bench.running("m") as responses:
        shutil.rmtree(tmp_path / "m")
        bench.poll()
        assert bench.index() == ["m 1 UNLOADING"]
    assert responses.get(timeout=LIMIT_S).error is None
    bench.until_index("m 1 UNAVAILABLE unloaded")


def test_instances_change_in_place(bench: Bench, tmp_path: Path) -> None:
    version = bench.version("m")
    put(tmp_path / "m" / "config.pbtxt", MORE_INSTANCES)
    bench.poll()
    assert bench.version("m") is version
    assert len(version.placements) == 3
    assert bench.backend.loads == ["m:1=1"]


@pytest.mark.parametrize(
    ("path", "half", "whole"),
    [("config.pbtxt", CONFIG[: len(CONFIG) // 2], CONFIG), ("1/model.fake", BROKEN, "2")],
)
def test_a_half_written_model_leaves_the_old_one_serving_and_gives_the_reason(
    bench: Bench, tmp_path: Path, path: str, half: str, whole: str
) -> None:
    put(tmp_path / "m" / path, half)
    bench.poll()
    (line,) = bench.index()
    assert line.startswith("m 1 READY ")
    assert ("Internal: the weights are broken" if half == BROKEN else "failed to read text proto") in line
    assert bench.ask("m") == 1
    assert bench.engine.is_ready()
    put(tmp_path / "m" / path, whole)
    bench.poll()
    assert bench.index() == ["m 1 READY"]


def test_a_truncated_graph_leaves_the_old_version_serving_until_it_is_complete(tmp_path: Path) -> None:
    graph = onnx_models.add_sub().SerializeToString()
    model = tmp_path / "simple" / "1" / "model.onnx"
    put(model, graph)
    with polling(tmp_path) as bench:
        version = bench.version("simple")
        put(model, graph[: len(graph) // 2])
        bench.poll()
        (line,) = bench.index()
        assert line.startswith("simple 1 READY Internal: onnx runtime error 7: ")
        assert bench.version("simple") is version
        put(model, graph)
        bench.poll()
        assert bench.index() == ["simple 1 READY"]
        assert bench.version("simple") is not version


def test_a_half_written_new_model_is_loaded_when_it_is_complete(bench: Bench, tmp_path: Path) -> None:
    put(tmp_path / "new" / "config.pbtxt", CONFIG)
    bench.poll()
    assert bench.index()[1].startswith("new UNAVAILABLE Invalid argument: at least one version must be available")
    put(tmp_path / "new" / "1" / "model.fake", BROKEN)
    bench.poll()
    assert bench.index() == ["m 1 READY", "new 1 UNAVAILABLE Internal: the weights are broken"]
    put(tmp_path / "new" / "1" / "model.fake", "2")
    bench.poll()
    assert bench.index() == ["m 1 READY", "new 1 READY"]


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


def test_a_slow_load_delays_no_other(bench: Bench, tmp_path: Path) -> None:
    write(tmp_path, "other", 1)
    bench.poll()
    with bench.backend.holding("m"):
        put(tmp_path / "m" / "1" / "model.fake", "2")
        bench.lifecycle.poll()
        until(lambda: bench.backend.loads[-1] == "m:1=2")
        put(tmp_path / "other" / "1" / "model.fake", "2")
        bench.lifecycle.poll()
        until(lambda: bench.ask("other") == 2)
        assert bench.ask("m") == 1
        # A model that is being loaded is left alone.
        put(tmp_path / "m" / "1" / "model.fake", "3")
        bench.lifecycle.poll()
        assert bench.backend.loads.count("m:1=3") == 0
    assert bench.lifecycle._threads.wait_idle(LIMIT_S)
    assert bench.ask("m") == 2
    bench.poll()
    assert bench.ask("m") == 3


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
