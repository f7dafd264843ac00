"""Open files, temporary and private directories, and files that are read again when they change."""

from __future__ import annotations

import os
import queue
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import trident.app.process.files
from trident.app.process.files import (
    NoPrivateDirectory,
    NoTemporaryDirectory,
    PrivateDirectory,
    WatchedFiles,
    raise_file_limit,
    remove_abandoned,
    temporary_directory,
)

LIMIT_S = 60.0


class Content:
    def __init__(self, *paths: Path) -> None:
        self.paths = tuple(map(str, paths))
        self.read: queue.Queue[list[str]] = queue.Queue()

    def read_again(self) -> None:
        self.read.put([path.read_text() if path.exists() else "none" for path in map(Path, self.paths)])


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("certificate", "key"):
        (tmp_path / name).write_text(f"old {name}")
    return tmp_path / "certificate", tmp_path / "key"


@pytest.mark.slow
def test_files_are_read_again_when_one_of_them_changes(files: tuple[Path, Path]) -> None:
    content = Content(*files)
    watched = WatchedFiles([content])
    watched.start()
    for file, text, read in (
        (files[0], "new certificate", ["new certificate", "old key"]),
        (files[1], "new key", ["new certificate", "new key"]),
    ):
        # Written in place it would be empty for a moment.
        replacement = file.with_suffix(".new")
        replacement.write_text(text)
        os.replace(replacement, file)
        assert content.read.get(timeout=LIMIT_S) == read
    files[1].unlink()
    assert content.read.get(timeout=LIMIT_S) == ["new certificate", "none"]
    watched.close()
    assert content.read.empty()


def test_a_change_before_the_start_is_read_at_once(files: tuple[Path, Path]) -> None:
    unchanged, changed = Content(files[0]), Content(files[1])
    watched = WatchedFiles([unchanged, changed])
    files[1].write_text("new key")
    watched.start()
    watched.close()
    assert changed.read.get_nowait() == ["new key"]
    assert unchanged.read.empty()


@pytest.mark.parametrize(
    ("hard", "connections"), [(10_512, 10_000), (100, 64), (10**9, 100_000), (resource.RLIM_INFINITY, 100_000)]
)
def test_file_limit_is_raised_and_bounds_connections(
    hard: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (50, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: raised.append(limits))
    assert raise_file_limit() == connections
    assert raised == [(hard, hard)]


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere/at/all"])
    return monkeypatch


def test_memory_is_used_when_no_disk_is_writable(nowhere: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nowhere.setattr(trident.app.process.files, "IN_MEMORY", str(tmp_path))
    assert temporary_directory() == str(tmp_path)
    with tempfile.NamedTemporaryFile() as file:
        assert Path(file.name).parent == tmp_path


def test_the_error_names_the_directories_that_were_tried(nowhere: pytest.MonkeyPatch) -> None:
    nowhere.setattr(trident.app.process.files, "IN_MEMORY", "/nowhere/either")
    with pytest.raises(NoTemporaryDirectory, match=r"neither that of TMPDIR, nor /tmp, .* or /nowhere/either"):
        temporary_directory()
    assert tempfile.tempdir is None


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short one: that of pytest may leave too little for the address of a socket."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@pytest.fixture
def made(folder: Path) -> Iterator[PrivateDirectory]:
    directory = PrivateDirectory.make(folder)
    yield directory
    directory.remove()


def test_private_directory_is_private(made: PrivateDirectory, folder: Path) -> None:
    assert made.path.parent == folder
    assert made.path.stat().st_mode & 0o777 == 0o700
    assert made.path.stat().st_uid == os.getuid()
    assert made.path.name.startswith(f"trident-{os.getpid()}-")
    assert made.metrics.is_dir()
    assert {made.socket.parent, made.changes.parent, made.metrics.parent} == {made.path}


def test_private_directory_exists_while_its_creator_runs(made: PrivateDirectory) -> None:
    child = os.fork()
    if not child:
        try:
            made.remove_if_orphaned()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert made.path.is_dir()


def test_restarted_engine_gets_an_empty_file_directory(made: PrivateDirectory) -> None:
    files = made.new_files()
    (files / "unpacked").mkdir()
    (files / "unpacked" / "model.onnx").touch()
    assert made.new_files() == files
    assert list(files.iterdir()) == []
    assert files.parent == made.path


def test_other_directories_are_not_removed(folder: Path) -> None:
    kept = [folder / name for name in ("trident-model-cache-0", "trident-x-1", "other", "trident-override-abc")]
    for path in kept:
        path.mkdir()
    outside = folder / "outside"
    outside.mkdir()
    (outside / "file").touch()
    link = folder / "trident-1-link"
    link.symlink_to(outside)
    remove_abandoned(folder)
    assert all(path.is_dir() for path in kept)
    assert (outside / "file").exists()
    assert link.is_symlink()


def test_a_path_that_is_too_long_for_a_socket_is_refused(folder: Path) -> None:
    deep = folder / ("d" * 100)
    deep.mkdir()
    with pytest.raises(NoPrivateDirectory, match="too long for a socket") as refused:
        PrivateDirectory.make(deep)
    assert refused.value.hint is not None
    assert "TMPDIR" in refused.value.hint
    assert list(deep.iterdir()) == []


def test_a_missing_parent_is_refused(folder: Path) -> None:
    with pytest.raises(NoPrivateDirectory, match="cannot be made"):
        PrivateDirectory.make(folder / "nothing")
