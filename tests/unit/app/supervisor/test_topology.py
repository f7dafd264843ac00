from __future__ import annotations

import pytest

from trident.adapters.common.options import BadOption
from trident.app.settings.reading import read_settings
from trident.app.settings.server import ServerSettings
from trident.app.supervisor.start import Topology, choose_topology

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
    monkeypatch.setattr("trident.app.supervisor.start.available_cores", lambda: 6.0)
    assert choose_topology(settings(REPOSITORY)).http_workers == 3


@pytest.mark.parametrize("cores", [2, 64])
def test_a_multi_model_endpoint_has_one_process_unless_more_are_asked_for(cores: float) -> None:
    variables = {"SAGEMAKER_MULTI_MODEL": "true", "SAGEMAKER_BIND_TO_PORT": "8080"}

    def choice(*arguments: str) -> Topology:
        return choose_topology(settings("--platform=sagemaker", *arguments, **variables), cores)

    assert (choice().http_workers, choice("--engines=auto").http_workers) == (0, 0)
    assert "memory" in choice().reason
    assert choice("--http-workers=2")[0::2] == (2, 1)
    assert choice("--engines=2").engines == 2
    assert choice("--engines=2").http_workers >= 2


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


@pytest.mark.parametrize(
    ("cores", "engines", "workers"),
    [(1, 1, 0), (1.5, 1, 0), (2, 1, 0), (4, 1, 2), (7, 1, 3), (8, 2, 5), (16, 4, 10), (64, 16, 40)],
)
def test_engines_for_the_cores(cores: float, engines: int, workers: int) -> None:
    choice = choose_topology(settings(REPOSITORY, "--engines=auto"), cores, 0)
    assert (choice.engines, choice.http_workers) == (engines, workers)


@pytest.mark.parametrize(("gpus", "engines"), [(0, 4), (1, 1), (8, 8)])
def test_an_engine_for_each_gpu(gpus: int, engines: int) -> None:
    assert choose_topology(settings(REPOSITORY, "--engines=auto"), 16, gpus).engines == engines


@pytest.mark.parametrize("cores", [1, 1.5, 4])
def test_every_gpu_has_an_engine_and_a_front_end_on_few_cores_too(cores: float) -> None:
    choice = choose_topology(settings(REPOSITORY, "--engines=auto"), cores, 2)
    assert (choice.engines, choice.http_workers) == (2, 2)


def test_one_engine_is_the_default_and_several_have_front_ends() -> None:
    assert choose_topology(settings(REPOSITORY), 64).engines == 1
    choice = choose_topology(settings(REPOSITORY, "--engines=3"), 2)
    assert choice == Topology(3, "there are 2 cores", 3)
    assert str(choice) == "3 HTTP workers in front of 3 engine processes: there are 2 cores"
    assert choose_topology(settings(REPOSITORY, "--engines=3", "--http-workers=1"), 2)[0::2] == (1, 3)


def test_auto_is_one_engine_where_several_make_no_sense() -> None:
    assert choose_topology(settings(REPOSITORY, "--engines=auto", "--http-workers=0"), 64).engines == 1


def test_several_engines_are_refused_where_nothing_can_be_before_them() -> None:
    with pytest.raises(BadOption, match="several engines need HTTP workers"):
        settings(REPOSITORY, "--engines=2", "--http-workers=0")
