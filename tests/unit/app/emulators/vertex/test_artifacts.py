from __future__ import annotations

from pathlib import Path

import pytest

from trident.app.emulators.vertex.container import provided
from trident.core.errors import ConfigInvalid


def test_an_address_is_passed_unchanged(tmp_path: Path) -> None:
    assert provided("gs://bucket/some/model/", tmp_path / "copy") == "gs://bucket/some/model/"
    assert not (tmp_path / "copy").exists()


def test_a_folder_is_copied_read_only(tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.onnx").write_bytes(b"x")
    (model / "link.onnx").symlink_to(model / "1" / "model.onnx")
    copy = Path(provided(str(model), tmp_path / "copy"))
    assert copy == tmp_path / "copy"
    (model / "1" / "model.onnx").write_bytes(b"changed")
    assert (copy / "1" / "model.onnx").read_bytes() == b"x"
    assert not (copy / "link.onnx").is_symlink()
    assert not (copy / "1").stat().st_mode & 0o222


@pytest.mark.parametrize(
    ("model", "text"), [("nothing", "is not there"), ("file", "is a file"), ("gs://", "no bucket")]
)
def test_invalid_artifacts_are_refused(model: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigInvalid, match=text):
        provided(model if model.startswith("gs:") else str(tmp_path / model), tmp_path / "copy")


def test_a_failed_copy_gives_the_reason(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "dangling").symlink_to(tmp_path / "nothing")
    with pytest.raises(ConfigInvalid, match="No such file"):
        provided(str(model), tmp_path / "copy")
