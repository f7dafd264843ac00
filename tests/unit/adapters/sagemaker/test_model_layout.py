"""The layout of the platform's model directory: its models and the default one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trident.adapters.sagemaker.layout import DEEPEST, find_default_model, find_model, list_files
from trident.core.errors import ConfigInvalid, InvalidRequest


def write(root: Path, *paths: str) -> str:
    root.mkdir(exist_ok=True)
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return str(root)


def test_one_of_several_models_must_be_named(tmp_path: Path) -> None:
    root = write(tmp_path / "model", "cat/1/model.onnx", "dog/config.pbtxt")
    assert find_default_model(root, "dog") == "dog"
    with pytest.raises(ConfigInvalid, match="holds several models: cat, dog") as refusal:
        find_default_model(root)
    assert refusal.value.hint == "name the model that /invocations runs: --env SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=cat"
    with pytest.raises(
        ConfigInvalid, match="SAGEMAKER_TRITON_DEFAULT_MODEL_NAME is 'cow', which is not a model in"
    ) as no:
        find_default_model(root, "cow")
    assert no.value.hint == "the models are: cat, dog"


def test_a_model_root_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="is not a directory"):
        find_default_model(str(tmp_path / "model"))
    root = write(tmp_path / "model")
    with pytest.raises(ConfigInvalid, match="it is empty"):
        find_default_model(root)
    write(tmp_path / "model", "code/inference.py", "resnet.onnx")
    with pytest.raises(ConfigInvalid, match=r"there is no model in .*: it holds 'code', 'resnet\.onnx'") as refusal:
        find_default_model(root)
    assert "model.onnx" in (refusal.value.hint or "")


# --- the model in an unpacked archive


ENSEMBLE = 'platform: "ensemble"'


class Archive:
    """The folder `hash/model` below a root, with files by path."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "hash" / "model"
        self.folder.mkdir(parents=True)

    def put(self, path: str, content: str = "") -> Path:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return file

    def found(self) -> str:
        """The model's folder, relative to the archive's."""
        return str(find_model(self.folder).relative_to(self.folder))


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "models")


@pytest.mark.parametrize(
    ("paths", "where"),
    [
        (["config.pbtxt", "1/model.onnx"], "."),
        (["1/model.onnx"], "."),
        (["model.onnx"], "."),
        (["config.pbtxt", "model.onnx"], "."),
        (["resnet/config.pbtxt", "resnet/1/model.onnx"], "resnet"),
        (["resnet/1/model.onnx"], "resnet"),
        (["resnet/model.onnx"], "resnet"),
        (["resnet/config.pbtxt", "resnet/1/model.onnx", "code/inference.py", "README.md"], "resnet"),
        (["resnet/1/model.onnx", ".ipynb_checkpoints/1/model.onnx"], "resnet"),
    ],
)
def test_the_model_is_found_in_each_layout(archive: Archive, paths: list[str], where: str) -> None:
    for path in paths:
        archive.put(path)
    assert archive.found() == where


def test_the_ensemble_of_several_models_is_found(archive: Archive) -> None:
    for name in ("after", "before"):
        archive.put(f"{name}/1/model.onnx", "12345")
        archive.put(f"{name}/config.pbtxt", 'platform: "onnxruntime_onnx"')
    archive.put("ensemble/config.pbtxt", ENSEMBLE)
    (archive.folder / "ensemble" / "1").mkdir()
    assert archive.found() == "ensemble"


@pytest.mark.parametrize(("ensembles", "what"), [(0, "none of them an ensemble"), (2, "2 of them ensembles")])
def test_several_models_without_one_ensemble_are_refused(archive: Archive, ensembles: int, what: str) -> None:
    for number in range(3):
        archive.put(f"m{number}/config.pbtxt", ENSEMBLE if number < ensembles else "")
    with pytest.raises(InvalidRequest, match=f"there are 3 models in '.*', {what}: 'm0', 'm1', 'm2'"):
        archive.found()


def test_a_folder_without_a_model_is_refused(archive: Archive) -> None:
    with pytest.raises(InvalidRequest, match=r"it holds nothing$"):
        archive.found()
    for number in range(10):
        archive.put(f"file{number}.txt")
    with pytest.raises(InvalidRequest, match=r"it holds 'file0.txt', .*'file7.txt' and 2 more$"):
        archive.found()


def test_links_within_the_folder_are_followed_once(archive: Archive) -> None:
    weights = archive.put("weights/big.onnx", "12345")
    (archive.folder / "1").mkdir()
    (archive.folder / "1" / "model.onnx").symlink_to(weights)
    (archive.folder / "1" / "gone").symlink_to(archive.folder / "nowhere")
    (archive.folder / "1" / "again").symlink_to(archive.folder)
    files = list_files(archive.folder)
    assert files == {"weights/big.onnx": 5, "1/model.onnx": 5}
    assert archive.found() == "."


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "/dev/zero", "/proc", "/nowhere/at/all", "ROOT/../secret", "ROOT/other/model"]
)
def test_link_out_of_the_folder_is_refused(archive: Archive, target: str) -> None:
    (archive.root.parent / "secret").write_text("secret")
    (archive.root / "other" / "model").mkdir(parents=True)
    (archive.folder / "1").mkdir()
    (archive.folder / "1" / "model.onnx").symlink_to(target.replace("ROOT", str(archive.root)))
    with pytest.raises(InvalidRequest, match=r"^the link '1/model.onnx' leads out of the archive$"):
        archive.found()


def test_a_pipe_is_never_opened(archive: Archive) -> None:
    (archive.folder / "1").mkdir()
    os.mkfifo(archive.folder / "1" / "model.onnx")
    with pytest.raises(InvalidRequest, match=r"^'1/model.onnx' is neither a file nor a folder$"):
        archive.found()


def test_too_many_levels_of_folders_are_refused(archive: Archive) -> None:
    archive.put("/".join(["d"] * DEEPEST) + "/file")
    list_files(archive.folder)
    archive.put("/".join(["d"] * (DEEPEST + 1)) + "/file")
    with pytest.raises(InvalidRequest, match=f"more than {DEEPEST} levels of folders"):
        archive.found()


def test_names_that_are_not_utf_8_are_escaped(archive: Archive) -> None:
    (archive.folder / os.fsdecode(b"\xff\n") / "1").mkdir(parents=True)
    with pytest.raises(InvalidRequest, match="there is no model") as caught:
        archive.found()
    assert "\n" not in caught.value.message
    caught.value.message.encode()
