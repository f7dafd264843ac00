"""A container of several models, and its answers to bad requests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import onnx

from tests.contract.lifecycle.changing_models import WIDTH
from tests.contract.sagemaker.sagemaker_archives import CSV
from tests.contract.sagemaker.sagemaker_container import SageMakerContainer
from tests.unit.onnx_models import add_sub, identity, strings, write_version
from tests.unit.onnx_serving import add_sub_config, identity_config

ROW = b"1,2,3,4\n"
# The default limit of a decompressed body.
MOST = 64 << 20


class SeveralModels:
    """A multi-model container. Every invocation names its model."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "models"
        self.log = folder / "log"
        self.process = SageMakerContainer(
            self.log, SAGEMAKER_MULTI_MODEL="true", TRIDENT_SAGEMAKER_MODELS_ROOT=str(self.root)
        )

    def load_model(self, name: str, model: onnx.ModelProto, config: str) -> None:
        write_version(model, self.root / name / "model", name, config)
        assert self.load(name) == 200

    def load(self, name: str) -> int:
        return self.process.load(name, f"{self.root}/{name}/model").status

    def unload(self, name: str) -> int:
        return self.process.ask("DELETE", f"/models/{name}").status

    def refusal(self, status: int, model: str, body: bytes, **headers: str) -> str:
        """The text of an invocation's error, which must have `status`. The container must serve afterwards."""
        answer = self.process.ask("POST", f"/models/{model}/invoke", body, **headers)
        assert answer.status == status, answer.text[:500]
        document = json.loads(answer.body)
        assert list(document) == ["error"]
        assert self.serves()
        text: str = document["error"]
        return text

    def serves(self) -> bool:
        answer = self.process.ask("POST", "/models/floats/invoke", ROW, Content_Type=CSV, Accept=CSV)
        return (answer.status, answer.body) == (200, b"1.0,2.0,3.0,4.0\n")


@contextlib.contextmanager
def several_models(folder: Path) -> Iterator[SeveralModels]:
    """A container of identity models of four elements a row, and of a model with two inputs.

    Bad requests are not faults of the server: its log must have no error at the end.
    """
    made = SeveralModels(folder)
    with made.process:
        for name, datatype in (("floats", "FP32"), ("integers", "INT8"), ("flags", "BOOL")):
            made.load_model(name, identity(datatype, ["n", WIDTH]), identity_config(datatype, [WIDTH]))
        made.load_model("text", strings(["n", WIDTH]), identity_config("BYTES", [WIDTH]))
        made.load_model("pair", add_sub(), add_sub_config())
        yield made
    log = made.log.read_text(errors="replace")
    assert "Traceback" not in log
    assert not [line for line in log.splitlines() if line.startswith(("E", "F")) and line[1:5].isdigit()]
