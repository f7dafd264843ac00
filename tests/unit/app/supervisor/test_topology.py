from __future__ import annotations

import pytest

from app.settings.reading import read_settings
from app.settings.server import ServerSettings
from app.supervisor.topology import choose_topology

REPOSITORY = "--model-repository=/models"


def settings(*arguments: str, **environ: str) -> ServerSettings:
    return read_settings([*arguments], environ)


@pytest.mark.parametrize("number", [0, 1, 2, 17])
@pytest.mark.parametrize("cores", [0.5, 2, 64])
def test_a_given_number_is_taken_whatever_the_cores(number: int, cores: float) -> None:
    assert choose_topology(settings(REPOSITORY, f"--http-workers={number}"), cores).http_workers == number


@pytest.mark.parametrize(
    ("cores", "number"), [(0.5, 0), (1, 0), (2, 0), (3.9, 0), (4, 2), (5.5, 2), (6, 3), (8, 4), (9, 4), (64, 4)]
)
def test_the_cores_decide_by_default(cores: float, number: int) -> None:
    choice = choose_topology(settings(REPOSITORY), cores)
    assert choice.http_workers == number
    assert f"{cores:g} cores" in choice.reason


def test_the_cores_are_those_of_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.supervisor.topology.available_cores", lambda: 6.0)
    assert choose_topology(settings(REPOSITORY)).http_workers == 3


@pytest.mark.parametrize("cores", [2, 64])
def test_a_multi_model_endpoint_has_one_process(cores: float) -> None:
    variables = {"SAGEMAKER_MULTI_MODEL": "true", "SAGEMAKER_BIND_TO_PORT": "8080"}
    choice = choose_topology(settings("--platform=sagemaker", **variables), cores)
    assert choice.http_workers == 0
    assert "memory" in choice.reason


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--http-workers=0"], "all in one process: set by --http-workers"),
        (["--http-workers=3"], "3 HTTP workers in front of an engine process: set by --http-workers"),
        ([], "2 HTTP workers in front of an engine process: there are 4 cores"),
    ],
)
def test_the_text_gives_the_topology_and_its_reason(arguments: list[str], text: str) -> None:
    assert str(choose_topology(settings(REPOSITORY, *arguments), 4)) == text
