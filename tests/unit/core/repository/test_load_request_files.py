"""The files of a load request as a source."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from trident.core.errors import InvalidRequest, RepositoryUnavailable
from trident.core.repository.sources import OverrideSource, Source


@pytest.fixture(autouse=True)
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
def test_path_that_leads_out_of_the_directory_is_refused(path: str, normal: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        OverrideSource("m", {"1/model.onnx": b"", path: b"x"})
    assert caught.value.message == (
        f"Invalid file parameter 'file:{path}' with normalized path '{normal}' must stay within model directory."
    )


def test_paths_within_the_model_directory_are_normalized() -> None:
    source = OverrideSource("m", {"/1/model.py": b"a", "1/model.py": b"bc", "//etc/passwd": b""})
    files = source.files("m") or ()
    assert [(file.path, file.size) for file in files] == [("1/model.py", 2), ("etc/passwd", 0)]
    source.close()
    source = OverrideSource("m", {"./1/../1/model.onnx": b"", "..names": b""})
    assert [file.path for file in source.files("m") or ()] == ["..names", "1/model.onnx"]
    source.close()
    OverrideSource("m", {"d/" * 32 + "x": b""}).close()


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a\0b", "x" * 300])
def test_model_name_does_not_choose_the_folder(name: str, temporary: Path) -> None:
    source = OverrideSource(name, {"1/model.onnx": b"graph"})
    fetched = source.fetch(name, source.files(name) or (), 1)
    (folder,) = temporary.iterdir()
    assert fetched.directory.path.resolve().parent == folder
    fetched.release()
    source.close()


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
def test_impossible_path_is_an_invalid_request(path: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        OverrideSource("m", {"1/model.onnx": b"", path: b""})
    assert caught.value.message == f"Invalid file parameter 'file:{why}"
    assert caught.value.hint


def test_failure_to_write_is_a_repository_error(temporary: Path) -> None:
    tempfile.tempdir = str(temporary / "none")
    with pytest.raises(RepositoryUnavailable, match=r"^failed to write the files of the load request for model 'm'"):
        OverrideSource("m", {"1/model.onnx": b""})
