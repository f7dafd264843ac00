"""Models in the platform's archives and folders, and the multi-model container that loads them."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from urllib.parse import quote

from tests.contract.lifecycle.changing_models import BATCHED, WIDTH, heavy, scaled
from tests.contract.sagemaker.sagemaker_container import SageMakerContainer
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


class MultiModelContainer(SageMakerContainer):
    """`root` is the folder into which the platform unpacks archives."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.root = folder / "models"
        self.root.mkdir()
        given = {"SAGEMAKER_MULTI_MODEL": "true", "TRIDENT_SAGEMAKER_MODELS_ROOT": str(self.root), **variables}
        super().__init__(folder / "log", **given)

    def url(self, name: str) -> str:
        return f"{self.root}/{name}/model"

    def put(self, name: str, factor: int, megabytes: int = 0) -> None:
        write_flat(Path(self.url(name)), factor, megabytes)

    def load_status(self, name: str) -> int:
        return self.load(name, self.url(name)).status

    def unload(self, name: str) -> int:
        return self.ask("DELETE", f"/models/{quote(name, safe='')}").status

    def status(self, name: str, factor: int | None = None) -> int:
        """The status of an invocation; the model must scale by `factor`."""
        path = f"/models/{quote(name, safe='')}/invoke"
        headers = {"Content_Type": CSV, "Accept": CSV, "X_Amzn_SageMaker_Target_Model": f"/team/{name}.tar.gz"}
        answer = self.ask("POST", path, ONES, **headers)
        assert answer.status != 200 or factor is None or is_scaled_by(answer.body, factor)
        return answer.status

    def models(self) -> dict[str, str]:
        """The URLs of all pages of the container's list, by name."""
        found: dict[str, str] = {}
        token = ""
        while True:
            answer = self.ask("GET", f"/models?limit=2&next_page_token={quote(token)}" if token else "/models?limit=2")
            assert answer.status == 200, answer.text
            document = json.loads(answer.body)
            page = {model["modelName"]: model["modelUrl"] for model in document["models"]}
            assert len(page) <= 2
            assert not page.keys() & found.keys()
            found |= page
            token = document.get("nextPageToken", "")
            if not token:
                return found
