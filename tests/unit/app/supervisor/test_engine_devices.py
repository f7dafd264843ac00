"""Which engine gets which GPUs."""

from __future__ import annotations

import pytest

from trident.app.supervisor.start import gpus_of_engine, usable_gpus
from trident.core.lifecycle.options import EnginePlace

GPUS = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]


@pytest.mark.parametrize(
    ("engines", "shares"),
    [
        (4, GPUS),
        (2, ["GPU-a,GPU-b", "GPU-c,GPU-d"]),
        (3, ["GPU-a", "GPU-b", "GPU-c,GPU-d"]),
        (5, [*GPUS, "GPU-a"]),
    ],
)
def test_the_gpus_are_divided(engines: int, shares: list[str]) -> None:
    assert [gpus_of_engine(EnginePlace(index, engines), GPUS) for index in range(engines)] == shares


@pytest.mark.parametrize("gpus", [[], ["GPU-a"], ["GPU-a", ""]], ids=["none", "one", "one that cannot be named"])
def test_engines_see_what_cannot_be_divided(gpus: list[str]) -> None:
    assert gpus_of_engine(EnginePlace(1, 2), gpus) is None


def test_one_engine_sees_all() -> None:
    assert gpus_of_engine(EnginePlace(), GPUS) is None


def test_an_installation_for_processors_uses_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trident.app.supervisor.start.gpu_uuids", lambda visible: tuple(GPUS))
    monkeypatch.setattr("trident.app.supervisor.start._GPU_PACKAGE", "no_such_package")
    assert usable_gpus(None) == 0
    monkeypatch.setattr("trident.app.supervisor.start._GPU_PACKAGE", "numpy")
    assert usable_gpus(None) == 4
