"""The weights of a version, once for each device."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from trident.core.backends.in_process import DeviceWeights
from trident.core.config.placement import DeviceKind, Placement

CPU = Placement("model_0", DeviceKind.CPU)
GPU = Placement("model_0", DeviceKind.GPU, 1)


def test_one_of_many_threads_loads_those_of_a_new_device() -> None:
    made: list[object] = []
    barrier = threading.Barrier(4)

    def load(placement: Placement) -> object:
        made.append(object())
        return made[-1]

    weights = DeviceWeights(load, {})

    def use(number: int) -> object:
        barrier.wait()
        return weights.of(Placement(f"model_{number}", DeviceKind.CPU))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(use, range(4))) == made * 4
    assert len(made) == 1


def test_a_device_that_is_not_retained_is_loaded_anew() -> None:
    weights = DeviceWeights(lambda placement: f"new on {placement.device}", {"cpu": "first", "gpu:1": "first"})
    weights.retain(["gpu:1"])
    assert dict(weights.loaded) == {"gpu:1": "first"}
    assert (weights.of(CPU), weights.of(GPU)) == ("new on cpu", "first")


def test_nothing_is_loaded_after_the_end() -> None:
    weights = DeviceWeights(lambda placement: "new", {"cpu": "first"})
    weights.close()
    with pytest.raises(RuntimeError, match="the model is closed"):
        weights.of(CPU)
