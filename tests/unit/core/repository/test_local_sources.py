"""Sources on this machine: folders, single models, and how one is opened."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.unit import onnx_models
from tests.unit.core.engine.test_in_process import CONFIG, serving
from trident.core.errors import ConfigInvalid, RepositoryUnavailable
from trident.core.repository.sources import (
    LocalSource,
    SourceOpener,
    SourceOptions,
    UsableNames,
)


def test_folders_of_other_programs_are_passed_over_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trident.repository")
    names = UsableNames("/models", lambda name: None)
    for _ in range(2):
        assert names.of(["simple", "lost+found", ".git", "__pycache__", "a.b"]) == ["a.b", "simple"]
    assert caplog.messages == [
        "ignore '.git', '__pycache__', 'lost+found' in /models: models do not have such names",
    ]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    version = tmp_path / "simple" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(b"graph")
    (tmp_path / "simple" / "config.pbtxt").write_bytes(b"")
    return tmp_path


def paths(source: LocalSource, model: str = "simple") -> list[str]:
    files = source.files(model)
    assert files is not None
    return [file.path for file in files]


def test_replaced_file_has_another_tag(repository: Path) -> None:
    """Even if the new file has the same size and time: `mv` and the links of mounted volumes replace files this way."""
    model = repository / "simple" / "1" / "model.onnx"
    before = LocalSource(repository).files("simple")
    other = repository / "simple" / "new"
    other.write_bytes(b"other")
    os.utime(other, ns=(model.stat().st_atime_ns, model.stat().st_mtime_ns))
    other.replace(model)
    assert LocalSource(repository).files("simple") != before


def test_what_python_compiles_beside_a_model_is_not_of_it(repository: Path) -> None:
    before = paths(LocalSource(repository))
    compiled = repository / "simple" / "1" / "__pycache__"
    compiled.mkdir()
    (compiled / "model.cpython-311.pyc").write_bytes(b"code")
    assert paths(LocalSource(repository)) == before


def test_cycle_of_links_ends(repository: Path) -> None:
    model = repository / "simple"
    (model / "again").symlink_to(model, target_is_directory=True)
    (model / "dangling").symlink_to(model / "nothing")
    (model / "link.txt").symlink_to(model / "1" / "model.onnx")
    assert paths(LocalSource(repository)) == ["1/model.onnx", "config.pbtxt", "link.txt"]


@pytest.mark.parametrize("name", ["none", "", ".", "..", "simple/1", "a\0b", "x" * 300])
def test_unknown_model_has_no_files(repository: Path, name: str) -> None:
    assert LocalSource(repository).files(name) is None


def test_label_file_is_found_beside_bare_files(tmp_path: Path) -> None:
    onnx_models.write(onnx_models.add_sub(), tmp_path / "bare" / "model.onnx")
    (tmp_path / "bare" / "labels.txt").write_text("a\nb\n")
    output = 'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: 16 label_filename: "labels.txt" }'
    (tmp_path / "bare" / "config.pbtxt").write_text(output + CONFIG)
    with serving(tmp_path / "bare", any_layout=True) as engine:
        assert engine.phase().failures == {}
        assert engine.model_config("model").parse().output[0].label_filename == "labels.txt"


def opener(folder: Path, credential_path: str = "") -> SourceOpener:
    options = SourceOptions(cache_directory=folder / "cache", cache_bytes=1 << 20, credential_path=credential_path)
    return SourceOpener(options)


def test_unknown_storages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid):
        opener(tmp_path).open("http://host/b")


def test_wrong_credential_file_fails_only_repositories_that_need_it(tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps({"s3": {"s3://one": {}}}))
    one = opener(tmp_path, str(file))
    one.open("s3://one/models")
    one.open("gs://bucket")
    with pytest.raises(RepositoryUnavailable, match="Cannot match credential for path  s3://other"):
        one.open("s3://other")
    file.write_text("not JSON")
    one.open(str(tmp_path))
    with pytest.raises(ConfigInvalid):
        one.open("s3://one/models")


def test_unusable_cache_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(RepositoryUnavailable):
        opener(tmp_path).open("s3://bucket")
