"""A digest of the files of a version, from which its answers follow."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from pathlib import Path

from trident.core.config.problem import open_file
from trident.core.repository.repository import (
    BYTECODE,
    CONFIG_FILE,
    GOLDEN_REQUESTS,
    NAMED_CONFIGS,
    ModelDirectory,
    version_number,
)
from trident.core.repository.sources import DEEPEST, MOST_FILES

_AT_ONCE = 1 << 20
# The configuration counts as it is in force, and golden requests change no answer.
_LEFT_OUT = frozenset({CONFIG_FILE, NAMED_CONFIGS, GOLDEN_REQUESTS})

# The path of a file below the model directory, and the state by which a change of it is seen.
_State = tuple[str, tuple[int, int, int]]


class ContentDigest:
    """The files of `version` and those that all versions share, as they are when this is made: before the load.

    Any thread.
    """

    def __init__(self, directory: ModelDirectory, version: int) -> None:
        """Looks at each file, and reads none. Of more than the repository lists there is no digest."""
        self._path = directory.path
        self._version = version
        try:
            self._before: list[_State] | None = self._states()
        except OSError:
            self._before = None
        self._lock = threading.Lock()
        self._digest: bytes | None = None

    def digest(self) -> bytes | None:
        """Return a digest of all files with their paths; None if they have changed since. Reads them once."""
        with self._lock:
            if self._digest is None and self._before is not None:
                try:
                    whole = blake2b()
                    for name, (size, _, _) in self._before:
                        whole.update(repr((name, size)).encode("utf-8", "surrogateescape"))
                        with open_file(self._path / name) as file:
                            while chunk := file.read(_AT_ONCE):
                                whole.update(chunk)
                    made = whole.digest()
                    self._digest = made if self._states() == self._before else None
                except OSError:
                    return None
            return self._digest

    def _states(self) -> list[_State]:
        found = sorted(islice(self._walk(self._path, frozenset()), MOST_FILES + 1))
        if len(found) > MOST_FILES:
            raise OSError(f"there are more than {MOST_FILES} files")
        return found

    def _walk(self, folder: Path, above: frozenset[str]) -> Iterator[_State]:
        real = os.path.realpath(folder)
        if real in above:  # a link to a folder that it is in
            return
        if len(above) > DEEPEST:
            raise OSError(f"there are more than {DEEPEST} folders in each other")
        with os.scandir(folder) as entries:
            for entry in entries:
                name = os.path.relpath(entry.path, self._path)
                if name in _LEFT_OUT or version_number(name) not in (None, self._version):
                    continue
                if entry.is_dir():
                    if entry.name != BYTECODE:
                        yield from self._walk(Path(entry.path), above | {real})
                elif entry.is_file():
                    found = entry.stat()
                    yield name, (found.st_size, found.st_mtime_ns, found.st_ino)
