"""A folder that only the server's user can write to: what it holds is trusted."""

from __future__ import annotations

import os
from pathlib import Path

from core.errors import RepositoryUnavailable
from core.repository.cache.disk_space import disk_failure


def make_private(directory: Path) -> None:
    """Make a folder that no other user can write to, or check that an existing one is such a folder.

    Raises RepositoryUnavailable.
    """
    cure = "name a folder that the server's user owns and nobody else can write to; it is made if missing"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = directory.stat()
    except FileExistsError as error:
        raise RepositoryUnavailable(f"the model cache {directory} is not a directory", hint=cure) from error
    except OSError as error:
        raise disk_failure(error, directory.parent, 0) from error
    if status.st_uid != os.geteuid():
        raise RepositoryUnavailable(
            f"the model cache {directory} belongs to user {status.st_uid}, the server runs as {os.geteuid()}", hint=cure
        )
    if status.st_mode & 0o022:
        raise RepositoryUnavailable(
            f"others can write to the model cache {directory} (mode {status.st_mode & 0o7777:o})", hint=cure
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        raise RepositoryUnavailable(f"the model cache {directory} cannot be written to", hint=cure)
