"""Finding model files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.backend_serving import config_of
from trident.core.backends.onnxruntime.graph import library_path, model_path
from trident.core.errors import RepositoryUnavailable


def made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_the_default_file_is_found(tmp_path: Path) -> None:
    path = made(tmp_path / "model.onnx")
    assert model_path(tmp_path, config_of("")) == path


def test_a_configured_file_is_found(tmp_path: Path) -> None:
    path = made(tmp_path / "sub" / "other.onnx")
    assert model_path(tmp_path, config_of('default_model_filename: "sub/other.onnx"')) == path


def test_a_compute_capability_may_have_its_own_file(tmp_path: Path) -> None:
    default, special = made(tmp_path / "model.onnx"), made(tmp_path / "new.onnx")
    config = config_of('cc_model_filenames { key: "9.0" value: "new.onnx" }')
    assert model_path(tmp_path, config, "9.0") == special
    assert model_path(tmp_path, config, "7.5") == default
    assert model_path(tmp_path, config) == default


def test_a_directory_may_hold_the_file(tmp_path: Path) -> None:
    path = made(tmp_path / "model.onnx" / "model.onnx")
    assert model_path(tmp_path, config_of("")) == path


@pytest.mark.parametrize("target", ["../../shared/weights.onnx", "/ROOT/shared/weights.onnx", "../../shared"])
def test_a_link_is_followed_wherever_it_leads(tmp_path: Path, target: str) -> None:
    """Versions share weights by links, and the snapshots of a hub consist of links."""
    made(tmp_path / "shared" / "weights.onnx")
    made(tmp_path / "shared" / "model.onnx")
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").symlink_to(target.replace("/ROOT", str(tmp_path)))
    found = model_path(version, config_of(""))
    assert found.is_relative_to(version)
    assert found.is_file()


def test_a_version_directory_may_be_a_link(tmp_path: Path) -> None:
    made(tmp_path / "1" / "model.onnx")
    (tmp_path / "2").symlink_to("1")
    assert model_path(tmp_path / "2", config_of("")) == tmp_path / "2" / "model.onnx"


@pytest.mark.parametrize("name", ["", "none.onnx", "../outside.onnx", "nul\\000.onnx", "n" * 300, "loop"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    made(tmp_path / "outside.onnx")
    version = tmp_path / "1"
    version.mkdir()
    (version / "loop").symlink_to("loop")
    with pytest.raises(RepositoryUnavailable) as caught:
        model_path(version, config_of(f'default_model_filename: "{name}"' if name else ""))
    assert caught.value.message.startswith(f"unable to find '{version}/")
    assert caught.value.message.endswith("' for model instance 'model'")


def test_an_empty_directory_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").mkdir()
    with pytest.raises(RepositoryUnavailable):
        model_path(tmp_path, config_of(""))


def test_libraries_are_found_in_the_model_or_left_to_the_system(tmp_path: Path) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    own = made(version / "own.so")
    shared = made(version.parent / "shared.so")
    linked = version.parent / "linked.so"
    linked.symlink_to(made(tmp_path / "ops.so"))
    assert library_path(version, "own.so") == str(own)
    assert library_path(version, "linked.so") == str(linked)
    assert library_path(version, "shared.so") == str(shared)
    assert library_path(version, "/opt/ops.so") == "/opt/ops.so"
    assert library_path(version, "libops.so") == "libops.so"
