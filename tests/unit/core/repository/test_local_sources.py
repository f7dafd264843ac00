"""Sources on this machine: folders, single models, and how one is opened."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.unit import onnx_models
from tests.unit.core.engine.test_in_process import CONFIG, infer, ones, serving
from trident.core.errors import ConfigInvalid, RepositoryUnavailable
from trident.core.lifecycle.state import UNLOADED, ModelState
from trident.core.repository.cloud_sources import ObjectStoreSource
from trident.core.repository.sources import (
    LocalSource,
    SingleModelSource,
    Source,
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


def test_name_with_a_problem_is_logged_again_after_it_has_disappeared(caplog: pytest.LogCaptureFixture) -> None:
    names = UsableNames("/models", lambda name: "it is long" if len(name) > 3 else None)
    for listed in (["long", "a"], ["long", "a"], ["a"], ["a", "long"]):
        assert names.of(listed) == ["a"]
    assert caplog.messages == ["ignore model 'long' in /models: it is long"] * 2


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


def test_source_lists_and_fetches_models(repository: Path) -> None:
    source: Source = LocalSource(repository)
    assert source.location == str(repository)
    assert source.models() == ["simple"]
    files = source.files("simple")
    assert files is not None
    assert [(file.path, file.size) for file in files] == [("1/model.onnx", 5), ("config.pbtxt", 0)]
    assert source.scan() == {"simple": files}
    fetched = source.fetch("simple", files, 1)
    assert fetched.directory.path == repository / "simple"
    fetched.release()
    assert (repository / "simple" / "1" / "model.onnx").read_bytes() == b"graph"


def test_replaced_file_has_another_tag(repository: Path) -> None:
    """Even if the new file has the same size and time: `mv` and the links of mounted volumes replace files this way."""
    model = repository / "simple" / "1" / "model.onnx"
    before = LocalSource(repository).files("simple")
    other = repository / "simple" / "new"
    other.write_bytes(b"other")
    os.utime(other, ns=(model.stat().st_atime_ns, model.stat().st_mtime_ns))
    other.replace(model)
    assert LocalSource(repository).files("simple") != before


def test_empty_version_is_listed(repository: Path) -> None:
    (repository / "simple" / "2").mkdir()
    assert paths(LocalSource(repository)) == ["1/model.onnx", "2/", "config.pbtxt"]


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


def test_versions_linked_to_one_folder_each_list_its_files(repository: Path) -> None:
    model = repository / "simple"
    (model / "2").symlink_to("1")
    (model / "1" / "again").symlink_to(".")
    assert paths(LocalSource(repository)) == ["1/model.onnx", "2/model.onnx", "config.pbtxt"]


@pytest.mark.parametrize("name", ["none", "", ".", "..", "simple/1", "a\0b", "x" * 300])
def test_unknown_model_has_no_files(repository: Path, name: str) -> None:
    assert LocalSource(repository).files(name) is None


def test_missing_repository_is_unavailable(repository: Path) -> None:
    with pytest.raises(RepositoryUnavailable):
        LocalSource(repository / "none").models()
    with pytest.raises(RepositoryUnavailable):
        LocalSource(repository / "none").files("simple")


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


def opener(folder: Path, credential_path: str = "") -> SourceOpener:
    options = SourceOptions(cache_directory=folder / "cache", cache_bytes=1 << 20, credential_path=credential_path)
    return SourceOpener(options)


def test_local_repository_needs_no_cache(tmp_path: Path) -> None:
    source = opener(tmp_path).open(str(tmp_path / "models"))
    assert isinstance(source, LocalSource)
    assert source.location == str(tmp_path / "models")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("s3://host:9000//b/m/", "s3://host:9000/b/m"),
        ("gs://bucket/m", "gs://bucket/m"),
        ("as://zoo/c/m", "as://zoo/c/m"),
    ],
)
def test_object_store_uri_opens_an_object_store_source(tmp_path: Path, text: str, location: str) -> None:
    source = opener(tmp_path).open(text)
    assert isinstance(source, ObjectStoreSource)
    assert source.location == location


def test_opening_downloads_nothing(tmp_path: Path) -> None:
    several = opener(tmp_path)
    several.open("s3://bucket/a")
    several.open("gs://bucket/b")
    assert (tmp_path / "cache").is_dir()
    assert not several.progress.snapshot().active


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
