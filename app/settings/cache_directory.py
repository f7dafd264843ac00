"""Where models from cloud storage are kept on the disk, if nothing says otherwise."""

from __future__ import annotations

import os
from pathlib import Path

from app.supervisor.temporary_directory import temporary_directory

_NAME = "trident"


def default_cache_directory() -> str:
    """The user's cache folder, or a folder of the user's own in the temporary one where there is no writable home.

    Raises NoTemporaryDirectory.
    """
    try:
        home = Path.home()
    except RuntimeError:  # a user that the system does not know, as containers have them
        home = Path()
    if home.is_absolute() and home.is_dir() and os.access(home, os.W_OK | os.X_OK):
        return str(home / ".cache" / _NAME)
    return str(Path(temporary_directory(), f"{_NAME}-{os.getuid()}"))
