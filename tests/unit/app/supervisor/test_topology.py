"""How many processes answer HTTP: what is said, or what fits the cores."""

from __future__ import annotations

import pytest

from app.settings.reading import read_settings
from app.settings.server import ServerSettings
from app.supervisor.topology import choose_workers

REPOSITORY = "--model-repository=/models"


def settings(*arguments: str, **environ: str) -> ServerSettings:
    return read_settings([*arguments], environ)


@pytest.mark.parametrize("number", [0, 1, 2, 17])
@pytest.mark.parametrize("cores", [0.5, 2, 64])
def test_a_number_is_taken_whatever_the_cores(number: int, cores: float) -> None:
    assert choose_workers(settings(REPOSITORY, f"--http-workers={number}"), cores).number == number


@pytest.mark.parametrize(
    ("cores", "number"), [(0.5, 0), (1, 0), (2, 0), (3.9, 0), (4, 2), (5.5, 2), (6, 3), (8, 4), (9, 4), (64, 4)]
)
def test_by_default_the_cores_decide(cores: float, number: int) -> None:
    choice = choose_workers(settings(REPOSITORY), cores)
    assert choice.number == number
    assert f"{cores:g} cores" in choice.reason


def test_the_cores_are_those_of_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.supervisor.topology.available_cores", lambda: 6.0)
    assert choose_workers(settings(REPOSITORY)).number == 3


@pytest.mark.parametrize("cores", [2, 64])
def test_many_models_of_sagemaker_have_one_process(cores: float) -> None:
    variables = {"SAGEMAKER_MULTI_MODEL": "true", "SAGEMAKER_BIND_TO_PORT": "8080"}
    choice = choose_workers(settings("--platform=sagemaker", **variables), cores)
    assert choice.number == 0
    assert "memory" in choice.reason


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--http-workers=0"], "all in one process: --http-workers says so"),
        (["--http-workers=3"], "3 HTTP workers before an engine process: --http-workers says so"),
        ([], "2 HTTP workers before an engine process: there are 4 cores"),
    ],
)
def test_the_choice_and_its_reason_are_told(arguments: list[str], text: str) -> None:
    assert str(choose_workers(settings(REPOSITORY, *arguments), 4)) == text
