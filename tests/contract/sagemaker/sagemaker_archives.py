"""Models in the platform's archives and folders."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

from tests.contract.lifecycle.changing_models import BATCHED, WIDTH, heavy, scaled
from tests.unit.onnx_models import identity, write, write_version
from tests.unit.onnx_serving import identity_config

CSV = "text/csv"
ONES = b",".join([b"1"] * WIDTH) + b"\n"


def is_scaled_by(answer: bytes, factor: int) -> bool:
    return {float(cell) for cell in answer.decode().strip().split(",")} == {float(factor)}


def write_flat(folder: Path, factor: float, megabytes: int = 0) -> Path:
    """Write a model: its configuration and version lie in `folder` itself."""
    model = heavy(factor, megabytes) if megabytes else scaled(factor)
    write(model, folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text(BATCHED)
    return folder


def write_nested(folder: Path, factor: float) -> Path:
    """Write a repository of one model."""
    write_version(scaled(factor), folder, "inside", BATCHED)
    return folder


def write_rows(folder: Path) -> Path:
    """Write a repository of an identity model, of four numbers a row and 512 rows at once."""
    write_version(identity("FP32", ["n", WIDTH]), folder, "rows", identity_config("FP32", [WIDTH], 512))
    return folder


def pack(folder: Path, archive: Path) -> Path:
    """Pack the content of `folder` into a .tar.gz."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(folder, ".")
    return archive


def pack_members(archive: Path, *members: tarfile.TarInfo) -> Path:
    """Pack members of zero bytes into a .tar.gz."""
    with tarfile.open(archive, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return archive


def pack_large(folder: Path, archive: Path, megabytes: int) -> Path:
    """As `pack`, with a file of zeros beside the weights: the archive is made fast and unpacked slowly."""
    large = tarfile.TarInfo("1/large")
    large.size = megabytes << 20
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        tar.add(folder, ".")
        end = tar.offset
    # A sequence of gzip members is one file.
    start = gzip.compress(plain.getvalue()[:end] + large.tobuf())
    archive.write_bytes(start + gzip.compress(bytes(1 << 20)) * (megabytes + 1))
    return archive


def listed(body: bytes) -> dict[str, str]:
    """The URLs of a page of models, by name."""
    return {model["modelName"]: model["modelUrl"] for model in json.loads(body)["models"]}
