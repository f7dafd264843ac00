"""One model under another name, or without a version directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit import onnx_models
from tests.unit.core.engine.test_in_process import CONFIG, infer, ones, serving
from trident.core.lifecycle.state import UNLOADED, ModelState
from trident.core.repository.sources import LocalSource, SingleModelSource


def test_folder_is_served_under_another_name(tmp_path: Path) -> None:
    (tmp_path / "hash" / "1").mkdir(parents=True)
    (tmp_path / "hash" / "1" / "model.onnx").write_bytes(b"graph")
    source = SingleModelSource(LocalSource(tmp_path), "hash", "cat")
    assert source.models() == ["cat"]
    files = source.files("cat")
    assert files is not None
    assert [file.path for file in files] == ["1/model.onnx"]
    assert source.files("hash") is None
    assert source.scan() == {"cat": files}
    fetched = source.fetch("cat", files, 1)
    assert (fetched.directory.name, fetched.directory.path) == ("cat", tmp_path / "hash")


def test_bare_files_become_version_1(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.onnx").write_bytes(b"graph")
    source = SingleModelSource(LocalSource(tmp_path), "model", "cat", bare=True)
    files = source.files("cat")
    assert files is not None
    assert [file.path for file in files] == ["1/model.onnx"]
    fetched = source.fetch("cat", files, 1)
    around = fetched.directory.path
    assert (around / "1" / "model.onnx").read_bytes() == b"graph"
    assert fetched.directory.folders() == ["1"]
    fetched.release()
    assert not around.exists()
    assert (tmp_path / "model" / "model.onnx").exists()


def test_label_file_is_found_beside_bare_files(tmp_path: Path) -> None:
    onnx_models.write(onnx_models.add_sub(), tmp_path / "bare" / "model.onnx")
    (tmp_path / "bare" / "labels.txt").write_text("a\nb\n")
    output = 'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: 16 label_filename: "labels.txt" }'
    (tmp_path / "bare" / "config.pbtxt").write_text(output + CONFIG)
    with serving(tmp_path / "bare", any_layout=True) as engine:
        assert engine.phase().failures == {}
        assert engine.model_config("model").parse().output[0].label_filename == "labels.txt"


def test_missing_folder_is_no_model(tmp_path: Path) -> None:
    source = SingleModelSource(LocalSource(tmp_path), "none", "cat")
    assert source.models() == []
    assert source.scan() == {}


@pytest.mark.parametrize("config", ["", 'name: "other" '])
def test_engine_serves_a_directory_under_the_given_name(tmp_path: Path, config: str) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    onnx_models.write_version(onnx_models.add_sub(), tmp_path / "elsewhere", "hash", config + CONFIG)
    with serving(repository, control_mode="explicit") as engine:
        engine.load_directory("cat", str(tmp_path / "elsewhere" / "hash"))
        response = infer(engine, "cat", ones(), ones())
        assert response.error is None
        assert response.model_name == "cat"
        engine.unload_model("cat", False, wait=True)
        (entry,) = engine.repository_index(False)
        assert (entry.state, entry.reason) == (ModelState.UNAVAILABLE, UNLOADED)
