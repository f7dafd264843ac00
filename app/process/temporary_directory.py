"""The directory for temporary files: the system's, or one in memory if no directory on the disk is writable.

A container with a read-only root and no volume at /tmp has only the latter.
"""

from __future__ import annotations

import os
import tempfile

from core.errors import ErrorCode, ServerError

IN_MEMORY = "/dev/shm"


class NoTemporaryDirectory(ServerError):
    code = ErrorCode.UNAVAILABLE


def temporary_directory() -> str:
    """The directory, which `tempfile` uses from then on too. Raises NoTemporaryDirectory."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        if not os.access(IN_MEMORY, os.W_OK | os.X_OK):
            raise NoTemporaryDirectory(
                "no folder for temporary files can be written: neither that of TMPDIR, nor /tmp, /var/tmp, /usr/tmp, "
                f"the working directory or {IN_MEMORY}",
                hint="set TMPDIR to a folder that can be written; in Kubernetes mount an emptyDir at /tmp",
            ) from error
    tempfile.tempdir = IN_MEMORY
    return IN_MEMORY
