"""Models that are in no repository: `trident serve FILE --reload`, and `trident import` from an object store."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.contract.lifecycle.changing_models import scaled
from tests.contract.repository.azurite import ACCOUNT, Azurite
from tests.contract.repository.cloud_models import KEYS
from tests.contract.repository.gcs_emulator import GcsEmulator
from tests.contract.repository.s3_emulator import S3Emulator, leave_aws
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import GOLDEN_MODELS, good_document
from tests.waiting import until
from trident.app.cli import main

ROW = {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 2], "data": [1, 3]}]}


class DirectServer(ServerProcess):
    """The words after `serve` are the file, and the repository."""

    @property
    def command(self) -> list[str]:
        repository = f"--model-repository={self.location}"
        return [str(self.file) if each == repository else each for each in super().command] + [self.location]

    file: Path


def made_for_servers() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("trident-serve-*"))


def test_python_model_file_is_served_directly_and_reloaded(tmp_path: Path) -> None:
    before = made_for_servers()
    repository = tmp_path / "models"
    assert main(["init", "ratio", f"--repository={repository}"]) == 0
    code, golden = repository / "ratio" / "1" / "model.py", repository / "ratio" / "golden" / "first.json"
    golden.unlink()
    written = code.read_text()
    server = DirectServer(repository, tmp_path / "log", "--reload", "--http-workers=0")
    server.file = next((GOLDEN_MODELS / "simple").rglob("model.onnx"))

    def answer() -> Any:
        return server.json("POST", "/v2/models/ratio/infer", ROW)["outputs"][0]["data"]

    with server:
        outputs = server.json("POST", "/v2/models/model/infer", good_document())["outputs"]
        assert outputs[0]["data"][:3] == [3, 4, 5]
        assert f"{server.file} is served as the model model: an ONNX model." in server.log_text()
        assert server.request("GET", "/console")[0] == 200
        assert answer() == [0.25, 0.75]
        code.write_text(written.replace("numbers / sums", "2 * numbers / sums"))
        until(lambda: answer() == [0.5, 1.5], server.log_text)
        # The author is told what is wrong and what serves meanwhile.
        code.write_text(f"{written}\ndef (")
        told = "version 1 of 'ratio' that was loaded before serves on"
        until(lambda: told in server.log_text(), server.log_text)
        assert "SyntaxError: invalid syntax" in server.log_text()
        assert answer() == [0.5, 1.5]
        code.write_text(written)
        until(lambda: answer() == [0.25, 0.75], server.log_text)
    assert made_for_servers() <= before


# --- import: objects are fetched, made into a model, run and compared like files

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


@pytest.mark.slow
def test_imported_object_or_folder_answers_like_the_original(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"--repository={tmp_path / 'models'}", f"--model-cache-directory={tmp_path / 'cache'}"]
    assert main(["import", f"{place}/exports/net.onnx", *options]) == 0
    printed = capsys.readouterr().out
    assert "answers the same" in printed
    assert "largest difference 0" in printed
    assert main(["import", f"{place}/exports", "--name=folder", *options]) == 0
    assert main(["import", f"{place}/exports/missing.onnx", *options]) == 1
    assert "there is nothing at" in capsys.readouterr().err
    for name in ("net", "folder"):
        assert (tmp_path / "models" / name / "1" / "model.onnx").read_bytes() == WEIGHTS
