"""Models as the platform has them: in archives, and unpacked where a container of many models looks."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from tests.contract.changing_models import BATCHED, WIDTH, heavy, scaled
from tests.unit.onnx_models import write, write_version

CSV = "text/csv"
ONES = b",".join([b"1"] * WIDTH) + b"\n"


def is_scaled_by(answer: bytes, factor: int) -> bool:
    return {float(cell) for cell in answer.decode().strip().split(",")} == {float(factor)}


def write_flat(folder: Path, factor: float, megabytes: int = 0) -> Path:
    """The model's configuration and its version in `folder` itself."""
    model = heavy(factor, megabytes) if megabytes else scaled(factor)
    write(model, folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text(BATCHED)
    return folder


def write_nested(folder: Path, factor: float) -> Path:
    """A repository of one model in `folder`."""
    write_version(scaled(factor), folder, "inside", BATCHED)
    return folder


def pack(folder: Path, archive: Path) -> Path:
    """The .tar.gz of what is in `folder`."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(folder, ".")
    return archive


def listed(body: bytes) -> dict[str, str]:
    """A page of a container's models: urls by name."""
    return {model["modelName"]: model["modelUrl"] for model in json.loads(body)["models"]}
