"""Sources on this machine: folders, single models, and how one is opened."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from trident.core.errors import ConfigInvalid, InvalidRequest, RepositoryUnavailable
from trident.core.repository.cloud_sources import ObjectStoreSource
from trident.core.repository.content_digest import ContentDigest
from trident.core.repository.layouts import AnyLayoutSource
from trident.core.repository.opener import SourceOpener, SourceOptions
from trident.core.repository.override_source import OverrideSource
from trident.core.repository.repository import ModelDirectory
from trident.core.repository.sources import DEEPEST, MOST_FILES, LocalSource, Source, UsableNames


def test_foreign_folders_are_ignored_with_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
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


def test_cycle_of_links_ends(repository: Path) -> None:
    model = repository / "simple"
    (model / "again").symlink_to(model, target_is_directory=True)
    (model / "dangling").symlink_to(model / "nothing")
    (model / "link.txt").symlink_to(model / "1" / "model.onnx")
    assert paths(LocalSource(repository)) == ["1/model.onnx", "config.pbtxt", "link.txt"]


def test_a_model_with_too_many_files_is_listed_in_part(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As with a link to a whole file system, which must not hold up the others."""
    many, deep = repository / "many", repository / "deep"
    (many / "files").mkdir(parents=True)
    for number in range(400):
        (many / "files" / str(number)).touch()
        (many / f"link{number}").symlink_to("files")
    (deep / "/".join(["d"] * (2 * DEEPEST))).mkdir(parents=True)
    (deep / "file").touch()
    source = LocalSource(repository)
    assert len(paths(source, "many")) == MOST_FILES
    assert paths(source, "deep") == paths(source, "deep") == ["file"]
    assert len(paths(source)) == 2
    assert [text.partition(" in ")[0] for text in caplog.messages] == ["model 'many'", "model 'deep'"]
    assert ContentDigest(ModelDirectory("deep", deep), 1).digest() is None


@pytest.mark.parametrize("name", ["none", "", ".", "..", "simple/1", "a\0b", "x" * 300])
def test_unknown_model_has_no_files(repository: Path, name: str) -> None:
    assert LocalSource(repository).files(name) is None


def opener(folder: Path, credential_path: str = "") -> SourceOpener:
    options = SourceOptions(cache_directory=folder / "cache", cache_bytes=1 << 20, credential_path=credential_path)
    return SourceOpener(options)


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


# --- the files of a load request as a source


@pytest.fixture
def temporary(tmp_path: Path) -> Iterator[Path]:
    """The folder for temporary folders; it must be empty at the end."""
    before, tempfile.tempdir = tempfile.tempdir, str(tmp_path)
    yield tmp_path
    tempfile.tempdir = before
    assert list(tmp_path.iterdir()) == []


def test_files_stay_until_the_last_release(temporary: Path) -> None:
    source = OverrideSource("m", {"1/model.onnx": b"graph", "labels.txt": b"a\nb"})
    one: Source = source
    assert one.models() == ["m"]
    files = one.files("m")
    assert files is not None
    assert one.files("other") is None
    assert [(file.path, file.size) for file in files] == [("1/model.onnx", 5), ("labels.txt", 3)]
    assert one.scan() == {"m": files}
    first, second = (source.fetch("m", files, 1) for _ in range(2))
    assert first.directory.name == "m"
    assert first.directory.folders() == ["1"]
    source.close()
    first.release()
    first.release()
    assert (second.directory.path / "1" / "model.onnx").read_bytes() == b"graph"
    second.release()
    assert not second.directory.path.exists()
    with pytest.raises(RepositoryUnavailable, match=r"^the files of the load request for model 'm' are gone$"):
        source.fetch("m", files, 1)


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("../other/1/model.onnx", "../other/1/model.onnx"),
        ("1/../../model.onnx", "../model.onnx"),
        ("/../x", "../x"),
        ("/", "."),
        ("..", ".."),
        ("1/..", "."),
        ("", "."),
        ("a\0b", "a\0b"),
    ],
)
def test_path_outside_the_directory_is_refused(path: str, normal: str, temporary: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        OverrideSource("m", {"1/model.onnx": b"", path: b"x"})
    assert caught.value.message == (
        f"Invalid file parameter 'file:{path}' with normalized path '{normal}' must stay within model directory."
    )


def test_paths_within_the_model_directory_are_normalized(temporary: Path) -> None:
    source = OverrideSource("m", {"/1/model.py": b"a", "1/model.py": b"bc", "//etc/passwd": b""})
    files = source.files("m") or ()
    assert [(file.path, file.size) for file in files] == [("1/model.py", 2), ("etc/passwd", 0)]
    source.close()
    source = OverrideSource("m", {"./1/../1/model.onnx": b"", "..names": b""})
    assert [file.path for file in source.files("m") or ()] == ["..names", "1/model.onnx"]
    source.close()
    OverrideSource("m", {"d/" * 32 + "x": b""}).close()


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("x" * 300, f"{'x' * 200}...': the name is too long"),
        ("1/" + "x" * 256, f"1/{'x' * 198}...': the name is too long"),
        (f"{'x' * 250}/" * 30 + "x", f"{'x' * 200}...': the name is too long"),
        ("d/" * 1500 + "x", f"{'d/' * 100}...': it has more than 32 nested folders"),
        ("1/model.onnx/x", "1/model.onnx/x': a file cannot also be a folder in another file's path"),
        ("1", "1': a file cannot also be a folder in another file's path"),
    ],
)
def test_impossible_path_is_an_invalid_request(path: str, why: str, temporary: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        OverrideSource("m", {"1/model.onnx": b"", path: b""})
    assert caught.value.message == f"Invalid file parameter 'file:{why}"
    assert caught.value.hint


def test_failure_to_write_is_a_repository_error(temporary: Path) -> None:
    tempfile.tempdir = str(temporary / "none")
    with pytest.raises(RepositoryUnavailable, match=r"^failed to write the files of the load request for model 'm'"):
        OverrideSource("m", {"1/model.onnx": b""})


# --- folders of any shape, told apart by their files


def local(root: Path) -> AnyLayoutSource:
    return AnyLayoutSource(LocalSource(root.parent), root.name, LocalSource(root))


def write(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "name"),
    [("", "model"), ('name: "cat"', "cat"), ('name: "../cat"', "model"), ("name: 17 }", "model")],
)
def test_single_model_is_named_by_its_configuration(tmp_path: Path, text: str, name: str) -> None:
    root = write(tmp_path / "root", {"config.pbtxt": text, "1/model.onnx": "graph", "2/model.onnx": "graph"})
    source = local(root)
    assert source.models() == [name]
    files = source.files(name)
    assert files is not None
    assert [file.path for file in files] == ["1/model.onnx", "2/model.onnx", "config.pbtxt"]
    fetched = source.fetch(name, files, 2)
    assert (fetched.directory.name, fetched.directory.path) == (name, root)


def test_unversioned_files_become_version_1_except_model_wide_ones(tmp_path: Path) -> None:
    listed = {"model.onnx": "graph", "model.onnx.data": "weights", "labels.txt": "a", "golden/1.json": "{}"}
    root = write(tmp_path / "root", {**listed, "config.pbtxt": ""})
    source = local(root)
    files = source.files("model")
    assert files is not None
    assert [file.path for file in files] == [
        "1/model.onnx",
        "1/model.onnx.data",
        "config.pbtxt",
        "golden/1.json",
        "labels.txt",
    ]
    fetched = source.fetch("model", files, 1)
    around = fetched.directory.path
    assert all((around / file.path).is_file() for file in files)
    fetched.release()
    assert not around.exists()
    assert {path.name for path in root.iterdir()} == {"config.pbtxt", *(name.partition("/")[0] for name in listed)}


def test_required_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    assert local(root).scan() == {}
    source = AnyLayoutSource(LocalSource(root.parent), root.name, LocalSource(root), required=True)
    with pytest.raises(RepositoryUnavailable, match=rf"^there is no model in {root}: it is empty$") as empty:
        source.scan()
    assert empty.value.hint == "a model repository, the folder of one model, or a file model.onnx"
    write(root, {"readme.md": "", "notes.txt": ""})
    with pytest.raises(RepositoryUnavailable, match=r": it holds 'notes\.txt', 'readme\.md'$"):
        source.scan()
    write(root, {f"{n:02}": "" for n in range(10)})
    with pytest.raises(RepositoryUnavailable, match=r": it holds '00', .*, '09' …$"):
        source.scan()
    write(root, {"model.onnx": ""})
    assert list(local(root).scan()) == ["model"]


def test_opener_detects_a_single_model_from_its_parent_folder(tmp_path: Path) -> None:
    opener = SourceOpener(SourceOptions(cache_directory=tmp_path / "cache", cache_bytes=0))
    write(tmp_path / "root", {"model.onnx": ""})
    assert opener.open(str(tmp_path / "root")).models() == []
    assert opener.open(f"{tmp_path / 'root'}/", any_layout=True).models() == ["model"]
    assert isinstance(opener.open("/", any_layout=True), LocalSource)
    assert isinstance(opener.open("gs://bucket", any_layout=True), ObjectStoreSource)
    placed = opener.open("gs://bucket/deep/root", any_layout=True)
    assert isinstance(placed, AnyLayoutSource)
    assert placed.location == "gs://bucket/deep/root"
