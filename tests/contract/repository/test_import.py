"""`trident import` of what lies in an object store: fetched, made into a model, run and compared as a file is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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


@contextmanager
def in_s3(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[str]:
    leave_aws(monkeypatch, folder)
    for name, text in KEYS.items():
        monkeypatch.setenv(name, text)
    with S3Emulator() as emulator:
        emulator.put("mine", "exports/net.onnx", WEIGHTS)
        yield f"s3://{emulator.address}/mine"


@contextmanager
def in_gcs(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[str]:
    with GcsEmulator() as emulator:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator.endpoint)
        emulator.put("mine", "exports/net.onnx", WEIGHTS)
        yield "gs://mine"


@contextmanager
def in_azure(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[str]:
    with Azurite() as emulator:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", emulator.connection_string)
        emulator.client.create_container("mine")
        emulator.put("mine", "exports/net.onnx", WEIGHTS)
        yield f"as://{ACCOUNT}/mine"


@pytest.mark.parametrize("storage", [in_s3, in_gcs, in_azure])
def test_an_object_or_a_folder_becomes_a_model_that_answers_as_it_does(
    storage: Callable[[pytest.MonkeyPatch, Path], AbstractContextManager[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = [f"--repository={tmp_path / 'models'}", f"--model-cache-directory={tmp_path / 'cache'}"]
    with storage(monkeypatch, tmp_path) as place:
        assert main(["import", f"{place}/exports/net.onnx", *options]) == 0
        assert "answers the same: largest difference 0" in capsys.readouterr().out
        assert main(["import", f"{place}/exports", "--name=folder", *options]) == 0
        assert main(["import", f"{place}/exports/missing.onnx", *options]) == 1
        assert "there is nothing at" in capsys.readouterr().err
    for name in ("net", "folder"):
        assert (tmp_path / "models" / name / "1" / "model.onnx").read_bytes() == WEIGHTS
