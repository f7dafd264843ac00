"""The directory in which models from cloud storage are cached, unless --model-cache-directory names one."""

from __future__ import annotations

import os
from pathlib import Path

from app.process.temporary_directory import temporary_directory

_NAME = "trident"


def cache_directory(mount: str) -> str:
    """A directory in `mount`, where Triton keeps its copies and so has room for them; the user's if `mount` is empty.

    The user's is in the home directory, or among the temporary files if the home is not writable. Raises
    NoTemporaryDirectory.
    """
    return os.path.join(mount, _NAME) if mount else _user_directory()


def _user_directory() -> str:
    try:
        home = Path.home()
    except RuntimeError:  # the system does not know the user, which is common in containers
        home = Path()
    if home.is_absolute() and home.is_dir() and os.access(home, os.W_OK | os.X_OK):
        return str(home / ".cache" / _NAME)
    return str(Path(temporary_directory(), f"{_NAME}-{os.getuid()}"))
