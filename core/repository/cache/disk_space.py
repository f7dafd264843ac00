"""A disk that is full, told before or after it happens: how many bytes are needed, how many are free, and where."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from core.errors import RepositoryUnavailable

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def free_bytes(directory: Path) -> int:
    """What this user can still write on the disk that holds `directory`. Raises OSError."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def is_full(error: OSError) -> bool:
    """Whether a write failed for want of space: no block left, a quota, or a limit on the size of a file."""
    return error.errno in _FULL


def no_space(directory: Path, needed: int, free: int, why: str = "no space left on the disk") -> RepositoryUnavailable:
    return RepositoryUnavailable(
        f"the model cache in {directory} has no room: {why}; {needed} bytes are needed, {free} bytes are free",
        hint="free space there, or name a folder on a larger disk as the model cache",
    )


def disk_failure(error: OSError, directory: Path, needed: int) -> RepositoryUnavailable:
    """What to raise for an error of the model cache in `directory`, where `needed` bytes were still to be written."""
    if is_full(error):
        return no_space(directory, needed, free_bytes(directory), error.strerror or str(error))
    return RepositoryUnavailable(f"failed to use the model cache in {directory}: {error.strerror or error}")
