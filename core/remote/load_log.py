"""What was loaded and unloaded by request, so that an engine that is started again has what the last one had.

Source: docs/spec/repository.md section 1.3 (control mode explicit).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from core.remote.calls.calls import decode_call, encode_call

_log = logging.getLogger("trident.engine")
_NEXT = ".next"


class Change(NamedTuple):
    """One call of the engine that succeeded: `load_model`, `load_directory` or `unload_model`, with its arguments."""

    call: str
    arguments: list[Any]


class LoadLog:
    """The last change of each model, in a file of its own that only this server reads and writes. Any thread.

    A file is what a front end sends for the call, so that all that a load can bring along comes back as it was.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` is made if it is not there."""
        self._folder = folder
        self._lock = threading.Lock()
        folder.mkdir(mode=0o700, exist_ok=True)
        self._files: dict[str, Path] = {}
        self._count = 0
        for path, change in self._found():
            self._replace(change.arguments[0], path)
            self._count = int(path.name)

    def note(self, call: str, arguments: list[Any]) -> None:
        """Remember a change in place of the model's last one; on disk before this returns.

        Where it cannot be written that is logged: the change was made all the same.
        """
        name: str = arguments[0]
        content = encode_call(call, arguments)
        with self._lock:
            self._count += 1
            path = self._folder / str(self._count)
            before = path.with_suffix(_NEXT)
            try:
                before.write_bytes(content)
                os.replace(before, path)
            except OSError as error:
                _log.error("an engine that is started again will not know that '%s' was changed: %s", name, error)
                before.unlink(missing_ok=True)
                return
            self._replace(name, path)

    def _replace(self, name: str, path: Path) -> None:
        old = self._files.get(name)
        self._files[name] = path
        if old is not None:
            old.unlink(missing_ok=True)

    def unloaded(self) -> frozenset[str]:
        """The models whose last change was to be unloaded."""
        return frozenset(change.arguments[0] for change in self.changes() if change.call == "unload_model")

    def changes(self) -> list[Change]:
        """In the order in which they were noted."""
        with self._lock:
            return [change for _, change in self._found()]

    def _found(self) -> Iterator[tuple[Path, Change]]:
        names = sorted((path.name for path in self._folder.iterdir() if path.name.isdigit()), key=int)
        for name in names:
            path = self._folder / name
            try:
                call, arguments = decode_call(path.read_bytes())
            except (OSError, ValueError) as error:
                _log.error("a note of what was loaded cannot be read: %s", error)
                continue
            yield path, Change(call.name, arguments)
