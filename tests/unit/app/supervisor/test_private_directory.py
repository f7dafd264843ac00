from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from trident.app.supervisor.private_directory import NoPrivateDirectory, PrivateDirectory, remove_abandoned


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short one: that of pytest may leave too little for the address of a socket."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[PrivateDirectory]:
    directory = PrivateDirectory.make(tmp_path)
    yield directory
    directory.remove()


def test_only_this_user_can_enter_it(made: PrivateDirectory, tmp_path: Path) -> None:
    assert made.path.parent == tmp_path
    assert made.path.stat().st_mode & 0o777 == 0o700
    assert made.path.stat().st_uid == os.getuid()
    assert made.path.name.startswith(f"trident-{os.getpid()}-")
    assert made.metrics.is_dir()
    assert {made.socket.parent, made.changes.parent, made.metrics.parent} == {made.path}


def test_it_may_be_removed_twice(made: PrivateDirectory) -> None:
    (made.changes).mkdir()
    (made.changes / "1").touch()
    made.remove()
    made.remove()
    assert not made.path.exists()


def test_it_is_not_orphaned_while_its_maker_lives(made: PrivateDirectory) -> None:
    child = os.fork()
    if not child:
        try:
            made.remove_if_orphaned()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert made.path.is_dir()


def test_an_engine_finds_no_files_of_the_last_one(made: PrivateDirectory) -> None:
    files = made.new_files()
    (files / "unpacked").mkdir()
    (files / "unpacked" / "model.onnx").touch()
    assert made.new_files() == files
    assert list(files.iterdir()) == []
    assert files.parent == made.path


def test_other_directories_are_not_removed(tmp_path: Path) -> None:
    kept = [tmp_path / name for name in ("trident-model-cache-0", "trident-x-1", "other", "trident-override-abc")]
    for path in kept:
        path.mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    link = tmp_path / "trident-1-link"
    link.symlink_to(outside)
    remove_abandoned(tmp_path)
    assert all(path.is_dir() for path in kept)
    assert (outside / "file").exists()
    assert link.is_symlink()


def test_a_path_that_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with pytest.raises(NoPrivateDirectory, match="too long for a socket") as refused:
        PrivateDirectory.make(deep)
    assert refused.value.hint is not None
    assert "TMPDIR" in refused.value.hint
    assert list(deep.iterdir()) == []


def test_a_missing_parent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoPrivateDirectory, match="cannot be made"):
        PrivateDirectory.make(tmp_path / "nothing")
