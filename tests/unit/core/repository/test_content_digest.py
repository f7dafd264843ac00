from __future__ import annotations

import os
from pathlib import Path

import pytest

from trident.core.repository.repository import ContentDigest, ModelDirectory


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "one" / "m")


def write(folder: Path) -> Path:
    for version in "12":
        (folder / version / "parts").mkdir(parents=True)
        (folder / version / "model.onnx").write_text(f"weights {version}")
        (folder / version / "parts" / "more").write_text("more")
    (folder / "labels.txt").write_text("cat\ndog")
    (folder / "config.pbtxt").write_text("max_batch_size: 8")
    return folder


def digest(folder: Path, version: int = 1) -> bytes:
    found = ContentDigest(ModelDirectory("m", folder), version).digest()
    assert found is not None
    return found


def test_it_is_the_same_on_another_machine(model: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "another" / "m")
    os.utime(other / "1" / "model.onnx", (1, 1))
    assert digest(other) == digest(model)


@pytest.mark.parametrize("path", ["1/model.onnx", "1/parts/more", "labels.txt"])
def test_each_file_counts(model: Path, path: str) -> None:
    before = digest(model)
    (model / path).write_text("weights 3")
    assert digest(model) != before


def test_a_name_counts(model: Path) -> None:
    before = digest(model)
    (model / "labels.txt").rename(model / "names.txt")
    assert digest(model) != before


@pytest.mark.parametrize("path", ["2/model.onnx", "config.pbtxt", "1/__pycache__/model.pyc", "golden/a.json"])
def test_what_does_not_decide_an_answer_does_not_count(model: Path, path: str) -> None:
    before = digest(model)
    (model / path).parent.mkdir(exist_ok=True)
    (model / path).write_text("other")
    assert digest(model) == before
    assert digest(model, 2) != before


def test_a_file_that_changed_after_the_load_began_leaves_it_unknown(model: Path) -> None:
    content = ContentDigest(ModelDirectory("m", model), 1)
    (model / "1" / "model.onnx").write_text("weights 9")
    assert content.digest() is None


def test_a_file_that_changes_after_it_was_read_does_not_matter(model: Path) -> None:
    content = ContentDigest(ModelDirectory("m", model), 1)
    before = content.digest()
    (model / "1" / "model.onnx").unlink()
    assert content.digest() == before


def test_links_count_as_what_they_name_and_may_go_round(model: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "1").symlink_to(model / "1")
    (linked / "labels.txt").symlink_to(model / "labels.txt")
    assert digest(linked) == digest(model)
    (model / "1" / "parts" / "up").symlink_to(model)
    digest(model)


def test_a_folder_that_is_gone_is_unknown(tmp_path: Path) -> None:
    assert ContentDigest(ModelDirectory("m", tmp_path / "none"), 1).digest() is None
