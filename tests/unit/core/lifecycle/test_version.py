"""A version that serves: holds, and instances that rest."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.unit.core.lifecycle.lifecycle_bench import LIMIT_S, living, write
from tests.unit.core.remote.remote_parts import connected, served
from tests.unit.core.scheduling.scheduler_bench import MakeBench
from tests.waiting import until
from trident.core.errors import ModelNotFound, ModelNotReady, ServerStopping
from trident.core.frontend.bridge import infer_many
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.lifecycle.model import Unloads
from trident.core.lifecycle.state import ModelState
from trident.core.lifecycle.version import PausedInstances


def request(name: str = "m", version: int = -1) -> InferenceRequest:
    return InferenceRequest(name, [InputTensor("INPUT0", "INT32", (1,), np.zeros(1, np.int32))], model_version=version)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    write(folder, "m", 1)
    return folder


def test_split_request_is_refused_entirely_after_an_unload(repository: Path) -> None:
    with living(repository, control_mode="explicit", load_models=("m",)) as bench:
        bench.engine.unload_model("m", False, wait=True)
        with pytest.raises(ModelNotFound, match="'m' has no available versions"):
            infer_many(bench.engine, iter([request()] * 3))
        assert not bench.backend.models[0].begun.acquire(blocking=False)


def test_an_unload_waits_for_the_release(repository: Path) -> None:
    with living(repository, control_mode="explicit", load_models=("m",)) as bench, ThreadPoolExecutor(1) as pool:
        number = bench.engine.hold_version("m")
        assert number < -1
        unloading = pool.submit(bench.engine.unload_model, "m", False, wait=True)
        until(lambda: bench.index() == ["m 1 UNLOADING"])
        with pytest.raises(ModelNotFound):
            bench.ask("m")
        assert bench.lifecycle.models.find("m", number).spec.version == 1
        bench.engine.release_version("m", number)
        unloading.result(LIMIT_S)
        assert bench.backend.models[0].is_closed
        with pytest.raises(ModelNotFound):
            bench.lifecycle.models.find("m", number)
        bench.engine.release_version("m", number)


def test_unloading_version_cannot_be_held(repository: Path) -> None:
    with living(repository) as bench:
        version = bench.version("m")
        version.hold()
        Unloads().begin(version, "a test")
        with pytest.raises(ModelNotReady, match="'m' version 1 is not at ready state"):
            bench.engine.hold_version("m")
        version.release()
        until(lambda: version.state.current is ModelState.UNAVAILABLE)
        bench.lifecycle.models.all()[0].serving = {}


def test_abandoned_version_does_not_wait_for_its_release(repository: Path) -> None:
    with living(repository) as bench:
        version = bench.version("m")
        version.hold()
        unloads = Unloads()
        unloads.begin(version, "a test")
        assert not unloads.wait(0)
        until(lambda: version.state.current is ModelState.UNAVAILABLE)
        with pytest.raises((ModelNotReady, ServerStopping)):
            bench.ask("m")
        version.release()
        bench.lifecycle.models.all()[0].serving = {}


def test_the_holds_of_a_lost_front_end_are_released(repository: Path, tmp_path: Path) -> None:
    with (
        living(repository, control_mode="explicit", load_models=("m",)) as bench,
        served(tmp_path, bench.engine) as (path, _),
    ):
        with connected(path) as engine:
            engine.hold_version("m")
            bench.engine.unload_model("m", False)
            assert bench.index() == ["m 1 UNLOADING"]
        until(lambda: bench.backend.models[0].is_closed)


def test_instance_is_paused_until_it_serves_again_and_may_be_removed(make_bench: MakeBench) -> None:
    bench = make_bench(instances=2)
    bench.scheduler.start()
    first, second = bench.backends
    resting = PausedInstances(bench.scheduler)

    def served_by() -> set[str]:
        for backend in bench.backends:
            backend.batches.clear()
        bench.submit(*map(str, range(20)))
        assert bench.scheduler.drain(LIMIT_S)
        return {backend.placement.name for backend in bench.backends if backend.batches}

    for _ in range(2):
        resting.change(first, False)
        assert served_by() == {second.placement.name}
    resting.change(first, True)
    resting.change(first, True)
    resting.change(second, False)
    assert served_by() == {first.placement.name}
    (finish,) = resting.remove([second], [first])
    finish()
    resting.change(second, True)
    assert served_by() == {first.placement.name}
