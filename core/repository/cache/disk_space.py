"""Errors for a full disk: they name the directory, the bytes needed and the bytes free."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from core.errors import RepositoryUnavailable

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def free_bytes(directory: Path) -> int:
    """The bytes that this user can still write to the disk of `directory`. Raises OSError."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def is_full(error: OSError) -> bool:
    """Whether a write failed for lack of space: a full disk, a quota, or a limit on the size of a file."""
    return error.errno in _FULL


def no_space(directory: Path, needed: int, free: int, why: str = "no space left on the disk") -> RepositoryUnavailable:
    return RepositoryUnavailable(
        f"the model cache in {directory} has no room: {why}; {needed} bytes are needed, {free} bytes are free",
        hint="free space there, or name a folder on a larger disk as the model cache",
    )


def disk_failure(error: OSError, directory: Path, needed: int) -> RepositoryUnavailable:
    """The exception for an error of the model cache in `directory`, which still had `needed` bytes to write."""
    if is_full(error):
        return no_space(directory, needed, free_bytes(directory), error.strerror or str(error))
    return RepositoryUnavailable(f"failed to use the model cache in {directory}: {error.strerror or error}")
