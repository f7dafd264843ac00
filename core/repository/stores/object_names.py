"""Which object names can be local files. Names from a storage are not trusted: none may lead out of its folder."""

from __future__ import annotations

import os
from collections.abc import Collection

_LONGEST = 255


def name_problem(name: str) -> str | None:
    """Why `name` cannot name a file or a folder; None if it can. A backslash is an ordinary character."""
    if not name:
        return "an empty name"
    if name in (os.curdir, os.pardir):
        return f"the name '{name}'"
    if "/" in name or "\0" in name:
        return "a name with a slash or a NUL"
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        return "a name that this file system cannot encode"
    return f"a name of more than {_LONGEST} bytes" if len(encoded) > _LONGEST else None


def path_problem(path: str) -> str | None:
    """Why `path` cannot be the relative path of a file; None if it can. An absolute path begins with an empty name."""
    return next((problem for problem in map(name_problem, path.split("/")) if problem), None)


def paths_problem(paths: Collection[str]) -> str | None:
    """Why `paths` cannot be the files of one folder; None if they can. A path that ends with `/` is a folder."""
    files = {path for path in paths if not path.endswith("/")}
    for path in paths:
        problem = path_problem(path.removesuffix("/"))
        if problem:
            return f"'{path}' has {problem}"
        components = path.split("/")
        for depth in range(1, len(components)):
            folder = "/".join(components[:depth])
            if folder in files:
                return f"'{folder}' is both a file and the folder of '{path}'"
    return None
