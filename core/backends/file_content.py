"""What keeps a model file from being one, whatever its framework.

A clone without Git LFS has pointers where the models belong, and a copy that was cut short may be empty.
"""

from __future__ import annotations

from pathlib import Path

_LFS_POINTER = b"version https://git-lfs"


def content_hint(path: Path) -> str | None:
    """The cure for a file that is empty or a Git LFS pointer; None for any other, and for what is not a file."""
    start = start_of(path, len(_LFS_POINTER))
    if start == b"":
        return "the file is empty: copy it again"
    if start == _LFS_POINTER:
        return "the file is a Git LFS pointer, not the model: run `git lfs pull` where it was cloned, and copy it again"
    return None


def start_of(path: Path, size: int) -> bytes | None:
    """The first `size` bytes of a file, or fewer if it has no more; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return None


def end_of(path: Path, size: int) -> bytes | None:
    """The last `size` bytes of a file, or fewer if it has no more; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read(size)
    except OSError:
        return None
