"""A version that serves: holds, and instances that rest."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.core.lifecycle.lifecycle_bench import LIMIT_S, Bench, living, write
from tests.unit.core.remote.remote_parts import connected, served
from tests.waiting import until
from trident.core.backends.backend import BackendInstance
from trident.core.config.placement import DeviceKind, Placement
from trident.core.errors import ModelNotFound, ModelNotReady, ServerStopping
from trident.core.frontend.bridge import AT_ONCE, infer_many
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.lifecycle.model import Retirement
from trident.core.lifecycle.state import ModelState
from trident.core.lifecycle.version import RestingInstances

COUNT = 3 * AT_ONCE


def request(name: str = "m", version: int = -1) -> InferenceRequest:
    return InferenceRequest(name, [InputTensor("INPUT0", "INT32", (1,), np.zeros(1, np.int32))], model_version=version)


def changing(bench: Bench, repository: Path) -> Iterator[InferenceRequest]:
    """The parts of a split request. Between them the model is unloaded, loaded with other weights and unloaded."""
    for number in range(COUNT):
        if number == AT_ONCE:
            bench.engine.unload_model("m", False)
        elif number == 2 * AT_ONCE:
            write(repository, "m", 2)
            bench.load("m")
            assert bench.ask("m") == 2
        elif number == COUNT - 1:
            bench.engine.unload_model("m", False)
        yield request()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    write(folder, "m", 1)
    return folder


def test_one_version_answers_all_parts_of_a_split_request(repository: Path) -> None:
    with living(repository, control_mode="explicit", load_models=("m",)) as bench:
        responses = infer_many(bench.engine, changing(bench, repository))
        assert [int(response.outputs[0].array[0]) for response in responses] == [1] * COUNT
        until(lambda: bench.backend.models[0].is_closed)


def test_a_split_request_is_refused_as_a_whole_after_an_unload(repository: Path) -> None:
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


def test_each_hold_has_its_own_number_while_it_lasts(repository: Path) -> None:
    with living(repository) as bench:
        first, second = bench.engine.hold_version("m"), bench.engine.hold_version("m", 1)
        assert (first, second) == (-2, -3)
        bench.engine.release_version("m", first)
        assert bench.engine.hold_version("m") == first
        bench.engine.release_version("m", first)
        bench.engine.release_version("m", second)


def test_a_version_that_is_leaving_cannot_be_held(repository: Path) -> None:
    with living(repository) as bench:
        version = bench.version("m")
        version.hold()
        Retirement().begin(version, "a test")
        with pytest.raises(ModelNotReady, match="'m' version 1 is not at ready state"):
            bench.engine.hold_version("m")
        version.release()
        until(lambda: version.state.current is ModelState.UNAVAILABLE)
        bench.lifecycle.models.all()[0].serving = {}


def test_an_abandoned_version_waits_for_no_release(repository: Path) -> None:
    with living(repository) as bench:
        version = bench.version("m")
        version.hold()
        retirement = Retirement()
        retirement.begin(version, "a test")
        assert not retirement.wait(0)
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


class FakeInstance:
    def __init__(self, name: str) -> None:
        self.placement = Placement(name, DeviceKind.CPU)


class FakeScheduler:
    """As the batcher: it keeps one instance, and takes none after it was closed."""

    def __init__(self, *instances: Any) -> None:
        self.instances = list(instances)
        self.forgotten: list[BackendInstance] = []
        self.is_closed = False

    def add(self, instance: BackendInstance) -> None:
        if self.is_closed:
            raise ServerStopping("closed")
        self.instances.append(instance)

    def remove(self, instance: BackendInstance) -> None:
        if instance not in self.instances or len(self.instances) == 1:
            raise ValueError("unknown or the last one")
        self.instances.remove(instance)

    def forget(self, instance: BackendInstance) -> None:
        self.forgotten.append(instance)


A: Any = FakeInstance("a")
B: Any = FakeInstance("b")


@pytest.fixture
def scheduler() -> FakeScheduler:
    return FakeScheduler(A, B)


@pytest.fixture
def resting(scheduler: FakeScheduler) -> RestingInstances:
    return RestingInstances(scheduler)  # type: ignore[arg-type]


def test_an_instance_rests_until_it_serves_again(scheduler: FakeScheduler, resting: RestingInstances) -> None:
    resting.change(A, False)
    resting.change(A, False)
    assert scheduler.instances == [B]
    resting.change(A, True)
    resting.change(A, True)
    assert scheduler.instances == [B, A]


def test_what_an_instance_remembered_is_lost_when_it_stops_serving(
    scheduler: FakeScheduler, resting: RestingInstances
) -> None:
    resting.change(A, False)
    resting.change(A, True)
    resting.change(B, False)
    assert scheduler.forgotten == [A, B]


def test_an_instance_may_be_removed_while_it_rests(scheduler: FakeScheduler, resting: RestingInstances) -> None:
    resting.change(A, False)
    resting.remove(A)
    resting.change(A, True)
    assert scheduler.instances == [B]
    scheduler.add(A)
    resting.remove(B)
    assert scheduler.instances == [A]
