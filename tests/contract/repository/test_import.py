"""`trident import` of what lies in an object store: fetched, made into a model, run and compared as a file is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.lifecycle.changing_models import scaled
from tests.contract.repository.azurite import ACCOUNT, Azurite
from tests.contract.repository.cloud_models import KEYS
from tests.contract.repository.gcs_emulator import GcsEmulator
from tests.contract.repository.s3_emulator import S3Emulator, leave_aws
from trident.app.cli import main

pytestmark = pytest.mark.slow
WEIGHTS = scaled(2.0).SerializeToString()


@pytest.fixture(params=["s3", "gcs", "azurite"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A bucket with `exports/net.onnx`."""
    emulator: S3Emulator | GcsEmulator | Azurite = request.getfixturevalue(request.param)
    emulator.put("mine", "exports/net.onnx", WEIGHTS)
    if isinstance(emulator, Azurite):
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", emulator.connection_string)
        return f"as://{ACCOUNT}/mine"
    if isinstance(emulator, GcsEmulator):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator.endpoint)
        return "gs://mine"
    leave_aws(monkeypatch, tmp_path)
    for name, text in KEYS.items():
        monkeypatch.setenv(name, text)
    return f"s3://{emulator.address}/mine"


def test_an_object_or_a_folder_becomes_a_model_that_answers_as_it_does(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"--repository={tmp_path / 'models'}", f"--model-cache-directory={tmp_path / 'cache'}"]
    assert main(["import", f"{place}/exports/net.onnx", *options]) == 0
    assert "answers the same: largest difference 0" in capsys.readouterr().out
    assert main(["import", f"{place}/exports", "--name=folder", *options]) == 0
    assert main(["import", f"{place}/exports/missing.onnx", *options]) == 1
    assert "there is nothing at" in capsys.readouterr().err
    for name in ("net", "folder"):
        assert (tmp_path / "models" / name / "1" / "model.onnx").read_bytes() == WEIGHTS
