"""Answers of a real Triton, recorded by `tests/triton_answers`, beside those of this server."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.contract.servers.server import ServerProcess
from tests.triton_answers import RECORDED, all_answers, area_name, areas, different, environment


@pytest.mark.shapes("one-process", "front-ends")
@pytest.mark.parametrize("area", areas(), ids=area_name)
def test_answers_are_those_of_triton(http_workers: str, area: ModuleType, tmp_path: Path) -> None:
    recorded = json.loads((RECORDED / f"{area_name(area)}.json").read_text())
    repository = tmp_path / "models"
    repository.mkdir()
    area.write_models(repository)
    options = [*area.OPTIONS, "--allow-client-shm=true", "--shutdown-grace-secs=0"]
    with ServerProcess(repository, tmp_path / "log", *options, environment=environment(area, repository)) as server:
        answers = all_answers(area, server)
    assert sorted(answers) == sorted(recorded)
    found = different(answers, recorded, area.OTHERWISE)
    assert found == {}, {question: recorded[question] for question in found}
