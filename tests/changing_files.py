"""Searching a folder that other processes change."""

from __future__ import annotations

import glob
from pathlib import Path


def found_below(folder: Path, pattern: str) -> list[str]:
    """The paths below the folder whose last parts match. pathlib's search raises if a folder disappears meanwhile."""
    return glob.glob(f"**/{pattern}", root_dir=folder, recursive=True, include_hidden=True)
