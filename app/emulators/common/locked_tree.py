"""Folders that the emulator makes for its container, in which the container may not write."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

_NOBODY_WRITES = 0o222
_OWN = 0o700


def lock_tree(folder: Path) -> None:
    """Take everybody's right to write in a folder and all below it."""
    for path, _, files in os.walk(folder):
        for each in [os.path.join(path, name) for name in files] + [path]:
            os.chmod(each, os.stat(each).st_mode & ~_NOBODY_WRITES)


def remove_tree(folder: Path) -> None:
    """Remove a folder in which nobody may write; another thread may be at it as well."""
    for path, _, _ in os.walk(folder):
        with suppress(FileNotFoundError):
            os.chmod(path, _OWN)
    shutil.rmtree(folder, ignore_errors=True)
