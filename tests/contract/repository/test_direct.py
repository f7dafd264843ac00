"""`trident serve FILE --reload`: models that are in no repository, or still being written."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

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


def test_a_file_is_served_as_it_is_and_a_change_is_loaded(tmp_path: Path) -> None:
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
