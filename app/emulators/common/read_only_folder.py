"""Folders in which the container may read and may not write."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

_READ_ONLY = 0o444
_READ_ONLY_FOLDER = 0o555
_OWNER_ONLY = 0o700


def make_read_only(folder: Path) -> None:
    """Set the modes of `folder` and of everything below it, except links. A process of root can still write."""
    for path, _, names in os.walk(folder):
        for file in [os.path.join(path, name) for name in names]:
            if not os.path.islink(file):
                os.chmod(file, _READ_ONLY)
        os.chmod(path, _READ_ONLY_FOLDER)


def remove_folder(folder: Path) -> None:
    """Remove `folder`, read-only or not. It may be missing, and another thread may remove it at the same time."""
    for path, _, _ in os.walk(folder):
        with suppress(FileNotFoundError):
            os.chmod(path, _OWNER_ONLY)
    shutil.rmtree(folder, ignore_errors=True)
