from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.core.lifecycle.lifecycle_bench import BROKEN, Bench, living, put, write
from trident.core.errors import OutOfMemory, ServerError
from trident.core.lifecycle.state import LoadCause, LoadCounts


def counted(counts: LoadCounts) -> dict[tuple[str, str], int]:
    return {(each.cause, each.result): each.count for each in counts.metrics() if each.count}


def test_every_count_is_shown_before_the_first_load() -> None:
    shown = LoadCounts().metrics()
    assert len({(each.cause, each.result) for each in shown}) == 9
    assert {each.count for each in shown} == {0}


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
        counts = bench.lifecycle.load_counts
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


def test_loads_by_request_are_counted_and_unloaded_versions_have_no_state(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with living(tmp_path, control_mode="explicit") as bench:
        bench.load("m")
        assert states(bench) == ["m 1 READY"]
        bench.engine.unload_model("m", False, wait=True)
        assert states(bench) == []
        put(tmp_path / "m" / "1" / "model.fake", BROKEN)
        with pytest.raises(ServerError, match="load failed"):
            bench.load("m")
        assert states(bench) == ["m 1 UNAVAILABLE"]
        assert counted(bench.lifecycle.load_counts) == {("request", "success"): 1, ("request", "failure"): 1}
