from __future__ import annotations

import os
import queue
from pathlib import Path

import pytest

from trident.app.process.files import WatchedFiles

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
    files[0].write_text("new certificate")
    assert content.read.get(timeout=LIMIT_S) == ["new certificate", "old key"]
    replacement = files[1].with_suffix(".new")
    replacement.write_text("new key")
    os.replace(replacement, files[1])
    assert content.read.get(timeout=LIMIT_S) == ["new certificate", "new key"]
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
