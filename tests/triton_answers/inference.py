"""Inference over HTTP: requests that Triton takes, and those that it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.contract.servers.server import ServerProcess
from tests.project import ROOT
from tests.triton_answers import Answers, http

OPTIONS = ()
ELEMENTS = {
    "status": 400,
    "type": "application/json",
    "body": {"error": "Failed to parse 'data' field: shape does not match true shape"},
}
NEWER_TEXT = "the text of newer releases"
OTHERWISE: dict[str, tuple[str, Any]] = {
    "shapes: [2, 16]": (NEWER_TEXT, ELEMENTS),
    "shapes: [1, 17]": (NEWER_TEXT, ELEMENTS),
}


def write_models(folder: Path) -> None:
    for name in ("simple", "str_id"):
        shutil.copytree(ROOT / "tests" / "golden" / "models" / name, folder / name)


def infer(server: ServerProcess, model: str, document: Any) -> Any:
    return http(server, "POST", f"/v2/models/{model}/infer", document)


def tensor(name: str, shape: list[Any], data: Any, datatype: str = "INT32", **more: Any) -> Any:
    return {"name": name, "shape": shape, "datatype": datatype, "data": data, **more}


def ask_shapes(server: ServerProcess) -> Answers:
    row = list(range(16))
    shapes: list[list[Any]] = [[1, 16], [16], [2, 16], [1, 17], [0, 16], [-1, 16], [1, 16, 1], [1.5, 16], ["1", 16]]
    return {
        str(shape): infer(server, "simple", {"inputs": [tensor("INPUT0", shape, row), tensor("INPUT1", [1, 16], row)]})
        for shape in shapes
    }
