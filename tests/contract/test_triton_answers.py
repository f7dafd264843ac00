"""Answers of a real Triton, recorded by `tests/triton_answers`, beside those of this server."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.contract.servers.server import ServerProcess
from tests.triton_answers import RECORDED, all_answers, area_name, areas, different, environment

# Their requests and responses have all forms that the frames between front ends and engine can have.
THROUGH_FRAMES = ("grpc_infer", "grpc_streams", "http_generate", "inference", "model_control", "sequences")


def assert_same(area: ModuleType, folder: Path) -> None:
    recorded = json.loads((RECORDED / f"{area_name(area)}.json").read_text())
    repository = folder / "models"
    repository.mkdir()
    area.write_models(repository)
    options = [*area.OPTIONS, "--allow-client-shm=true", "--shutdown-grace-secs=0"]
    with ServerProcess(repository, folder / "log", *options, environment=environment(area, repository)) as server:
        answers = all_answers(area, server)
    assert sorted(answers) == sorted(recorded)
    found = different(answers, recorded, area.OTHERWISE)
    assert found == {}, {question: recorded[question] for question in found}


@pytest.mark.parametrize("area", areas(), ids=area_name)
def test_answers_are_those_of_triton(http_workers: str, area: ModuleType, tmp_path: Path) -> None:
    assert_same(area, tmp_path)


@pytest.mark.shapes("front-ends")
@pytest.mark.parametrize("area", [area for area in areas() if area_name(area) in THROUGH_FRAMES], ids=area_name)
def test_answers_through_front_ends_are_those_of_triton(http_workers: str, area: ModuleType, tmp_path: Path) -> None:
    assert_same(area, tmp_path)
