"""Requests while models are loaded, replaced and unloaded: none fails, and one version answers each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.project import pure_python_only
from tests.unit.core.lifecycle.lifecycle_bench import CONFIG, LIMIT_S, Bench, living, put, threads, weight_of, write
from tests.waiting import until
from trident.core.errors import ModelNotFound, ServerStopping
from trident.core.inference.request import InputTensor
from trident.core.lifecycle.state import Phase
from trident.core.repository.sources import LocalSource

explicit = partial(living, control_mode="explicit", load_models=("m",))


class Noticed(InputTensor):
    """An input for the fake backend. Each check of it first makes the next of `changes`."""

    __slots__ = ("_changes",)

    def __init__(self, *changes: Callable[[], None]) -> None:
        super().__init__("INPUT0", "INT32", (1,), np.zeros(1, np.int32))
        self._changes = list(changes)

    def __getattribute__(self, name: str) -> object:
        changes: list[Callable[[], None]] = super().__getattribute__("_changes") if name == "datatype" else []
        if changes:
            changes.pop(0)()
        return super().__getattribute__(name)


@pure_python_only
def test_a_request_that_found_a_version_just_before_it_left_is_served_by_the_next(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with explicit(tmp_path) as bench:

        def reload(weight: str) -> None:
            put(tmp_path / "m" / "1" / "model.fake", weight)
            bench.load("m")

        assert bench.ask("m", tensor=Noticed(partial(reload, "2"))) == 2
        assert bench.ask("m", tensor=Noticed(partial(reload, "3"), partial(reload, "4"), partial(reload, "5"))) == 5
        unload = partial(bench.engine.unload_model, "m", False)
        with pytest.raises(ModelNotFound, match="'m' has no available versions"):
            bench.ask("m", tensor=Noticed(unload))


def test_a_version_that_was_found_and_then_left_passes_requests_on(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with explicit(tmp_path) as bench:
        found = bench.engine.model("m")
        put(tmp_path / "m" / "1" / "model.fake", "2")
        bench.load("m")
        until(lambda: bench.backend.models[0].is_closed)
        assert weight_of(bench.submit_to(found, "m")) == 2
        bench.engine.unload_model("m", False, wait=True)
        with pytest.raises(ModelNotFound, match="'m' has no available versions"):
            weight_of(bench.submit_to(found, "m"))


def test_the_version_that_was_found_as_the_latest_serves_though_a_later_one_was_loaded(tmp_path: Path) -> None:
    write(tmp_path, "m", 1, config=CONFIG + "version_policy { all {} }")
    with explicit(tmp_path) as bench:
        found = bench.engine.model("m")
        put(tmp_path / "m" / "2" / "model.fake", "2")
        bench.load("m")
        assert bench.ask("m") == 2
        assert weight_of(bench.submit_to(found, "m")) == 1


def test_an_unload_returns_while_a_request_runs(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with explicit(tmp_path) as bench:
        with bench.running("m") as responses:
            bench.engine.unload_model("m", False)
            assert bench.index() == ["m 1 UNLOADING"]
            assert bench.engine.is_ready()
        bench.until_index("m 1 UNAVAILABLE unloaded")
        assert weight_of(responses) == 1


def test_a_load_does_not_wait_for_an_unload(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with explicit(tmp_path) as bench:
        with bench.running("m") as responses:
            bench.engine.unload_model("m", False)
            bench.load("m")
            assert bench.index() == ["m 1 READY"]
            assert bench.ask("m") == 1
            assert not bench.backend.models[0].is_closed
        assert weight_of(responses) == 1
        until(lambda: bench.backend.models[0].is_closed)
        assert bench.index() == ["m 1 READY"]


def test_requests_are_refused_while_the_server_stops(tmp_path: Path) -> None:
    write(tmp_path, "m", 1)
    with explicit(tmp_path) as bench:
        with bench.running("m") as running:
            bench.engine.begin_exit()
            assert not bench.engine.finish(0)
            with pytest.raises(
                ServerStopping, match="scheduler for model has stopped accepting new inference requests"
            ):
                bench.ask("m")
        assert weight_of(running) == 1


@pytest.mark.parametrize("mode", ["none", "poll", "explicit"])
def test_the_exit_does_not_wait_for_a_load(tmp_path: Path, mode: str) -> None:
    for name in ("held", "held too", "waiting"):
        write(tmp_path, name, 1)
    bench = Bench(
        [tmp_path],
        lambda text: LocalSource(Path(text)),
        control_mode=mode,
        load_models=("held", "held too", "waiting") if mode == "explicit" else (),
        load_threads=2,
        poll_secs=0.01,
    )
    with bench.backend.holding("held"), bench.backend.holding("held too"):
        bench.engine.start()
        until(lambda: len(bench.backend.loads) == 2)
        bench.engine.begin_exit()
        assert bench.engine.finish(LIMIT_S)
        assert bench.engine.phase().name == Phase.EXITING
        assert {"trident-lifecycle", "trident-load"} <= set(threads())
    # The held load ends and leaves nothing behind; a load that waited for a thread does not begin.
    until(lambda: threads() == [])
    assert all(model.is_closed for model in bench.backend.models)
    assert len(bench.backend.loads) == 2
