"""Paths that a configuration names: none of them may lead out of the model directory.

They are followed link by link below the directory as it is given; its own canonical path means nothing. Where KServe
mounts a model from another container `/mnt/models` is a link to `/proc/PID/root/models`, and what that resolves to,
`/models`, is a path in the other container.
"""

from __future__ import annotations

import os
from pathlib import Path

# As Linux has it: whoever follows more goes in a circle.
_MOST_LINKS = 40
# Linux's longest path in characters; a longer one is none, and to follow it would take time by its square.
_LONGEST = 4096


def is_plain(relative: str) -> bool:
    """Whether `relative` has no way out of a directory in its own text; where symbolic links lead is not looked at."""
    return not (relative.startswith("/") or ".." in relative.split("/") or "\0" in relative)


def path_inside(directory: Path, relative: str) -> Path | None:
    """`directory/relative` with the symbolic links below `directory` followed; None where that is outside, or no path.

    What leads out and in again is inside. What is not there is inside if its name is.
    """
    if "\0" in relative:
        return None
    names = _followed(directory, [], relative, _MOST_LINKS)
    return None if names is None else directory.joinpath(*names)


def _followed(directory: Path, below: list[str], text: str, links: int) -> list[str] | None:
    """The names below `directory`, none of them a link, to which `text` leads from the folder `below`.

    None if that is outside, or only to be reached through more than so many `links`.
    """
    if len(text) > _LONGEST:
        return None
    if text.startswith("/"):
        return _back_inside(directory, text, links)
    names = text.split("/")
    for index, name in enumerate(names):
        if name in ("", os.curdir):
            continue
        if name == os.pardir:
            if not below:
                return _back_inside(directory, "/".join((str(directory), *names[index:])), links)
            below = below[:-1]
            continue
        target = _link(directory.joinpath(*below, name))
        if target:
            return _followed(directory, below, "/".join((target, *names[index + 1 :])), links - 1) if links else None
        below = [*below, name]
    return below


def _back_inside(directory: Path, path: str, links: int) -> list[str] | None:
    """The same of a `path` that begins elsewhere: where on its way it comes to `directory` last, by whatever name."""
    names = path.split("/")
    for end in range(len(names), 0, -1):
        try:
            is_there = os.path.samefile("/".join(names[:end]) or "/", directory)
        except OSError:
            continue
        if is_there:
            leaves = names[end : end + 1] == [os.pardir]
            rest = "/".join(names[end:]).lstrip("/")
            return None if leaves or not links else _followed(directory, [], rest, links - 1)
    return None


def _link(path: Path) -> str:
    """What `path` is a link to; "" if it is none, or is not there."""
    try:
        return os.readlink(path)
    except OSError:
        return ""
