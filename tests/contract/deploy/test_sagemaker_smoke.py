"""`python -m deploy.sagemaker smoke` with the real server in the container of `trident emulate sagemaker`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.deploy.sagemaker_credentials import emulated, set_credentials
from tests.contract.emulators.sagemaker_emulator import SageMakerEmulator
from tests.contract.sagemaker.sagemaker_archives import pack
from tests.project import ROOT
from tests.unit.deploy.sagemaker.sagemaker_command import Result, run

pytestmark = pytest.mark.slow

DIGITS = str(ROOT / "deploy" / "digits" / "6.json")
FORMS = ["v2", "binary", "instances", "csv"]


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_credentials(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archives")
    for name in ("simple", "digits"):
        pack(ROOT / "deploy" / "models" / name, folder / f"{name}.tar.gz")
    return folder


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A request of three items for the model with two inputs."""
    inputs = [
        {"name": name, "datatype": "INT32", "shape": [3, 16], "data": list(range(start, start + 48))}
        for name, start in (("INPUT0", 0), ("INPUT1", 100))
    ]
    path = tmp_path_factory.mktemp("request") / "pair.json"
    path.write_text(json.dumps({"inputs": inputs}))
    return str(path)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory, archives: Path) -> Iterator[SageMakerEmulator]:
    folder = tmp_path_factory.mktemp("one")
    with SageMakerEmulator(folder, Path(shutil.copy(archives / "digits.tar.gz", folder))) as emulator:
        yield emulator


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, archives: Path) -> Iterator[SageMakerEmulator]:
    with SageMakerEmulator(tmp_path_factory.mktemp("many"), archives, "--multi-model") as emulator:
        yield emulator


def smoke(emulator: SageMakerEmulator, *arguments: str) -> Result:
    return run("smoke", "any", *arguments, *emulated(emulator.client.meta.endpoint_url))


def passed(result: Result) -> list[str]:
    """The lines of the forms that were sent, with the size of their answers."""
    assert (result.status, result.errors) == (0, "")
    return [line.partition(",")[0] for line in result.out.splitlines()]


def test_one_model_answers_the_same_in_every_form(one: SageMakerEmulator) -> None:
    assert passed(smoke(one, "--request", DIGITS)) == [f"{form}: 1 rows of 10 values" for form in FORMS]


def test_named_model_answers(many: SageMakerEmulator, pair: str) -> None:
    to = ("--kind=multi-model", "--target-model")
    digits = passed(smoke(many, *to, "digits.tar.gz", "--request", DIGITS))
    both = passed(smoke(many, *to, "simple.tar.gz", "--request", pair))
    assert digits == [f"{form}: 1 rows of 10 values" for form in FORMS]
    assert both == [f"{form}: 3 rows of 32 values" for form in FORMS]


def test_refused_request_fails(one: SageMakerEmulator, pair: str) -> None:
    result = smoke(one, "--request", pair)
    assert result.status == 1
    assert "InvokeEndpoint: ModelError" in result.errors
    assert "expected 1 inputs but got 2 inputs" in result.errors
