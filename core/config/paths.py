"""Paths that a configuration names: none of them may lead out of the model directory."""

from __future__ import annotations

from pathlib import Path


def is_plain(relative: str) -> bool:
    """Whether `relative` has no way out of a directory in its own text; where symbolic links lead is not looked at."""
    return not (relative.startswith("/") or ".." in relative.split("/") or "\0" in relative)


def path_inside(directory: Path, relative: str) -> Path | None:
    """`directory/relative` with its symbolic links followed; None where that is outside `directory` or is no path."""
    if "\0" in relative:
        return None
    try:
        root = directory.resolve()
        path = (root / relative).resolve()
    except (OSError, RuntimeError):  # links that lead in a circle
        return None
    return path if path.is_relative_to(root) else None
