"""The load log: the loads and unloads that clients requested, so that a restarted engine has the same models.

Source: docs/spec/repository.md section 1.3 (control mode explicit).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from core.engine.call import ModelChange
from core.engine.protocol import Engine
from core.remote.calls.calls import Call, decode_call, encode_call

_log = logging.getLogger("trident.engine")
_NEXT = ".next"


class Change(NamedTuple):
    """A call that loaded or unloaded a model, with all of its arguments, of which the first is the model's name."""

    call: Call
    arguments: list[Any]

    @property
    def model(self) -> str:
        name: str = self.arguments[0]
        return name

    def repeat(self, engine: Engine) -> None:
        """Make the change again. Raises what the call raises."""
        self.call.ask(engine, self.arguments)


class LoadLog:
    """The last change of each model, one file per model in a folder that only this server uses. Any thread.

    A file holds what a front end sends for the call, so all arguments of a load survive, files included.
    """

    def __init__(self, folder: Path) -> None:
        """Make `folder` if it does not exist."""
        self._folder = folder
        self._lock = threading.Lock()
        folder.mkdir(mode=0o700, exist_ok=True)
        self._files: dict[str, Path] = {}
        self._count = 0
        for path, change in self._found():
            self._replace(change.model, path)
            self._count = int(path.name)

    def note(self, change: Change) -> None:
        """Record a change instead of the model's last one. It is on disk when this returns.

        If it cannot be written only the log says so, because the change itself was made.
        """
        content = encode_call(change.call.name, change.arguments)
        with self._lock:
            self._count += 1
            path = self._folder / str(self._count)
            partial = path.with_suffix(_NEXT)
            try:
                partial.write_bytes(content)
                os.replace(partial, path)
            except OSError as error:
                _log.error("a restarted engine will not know that '%s' was changed: %s", change.model, error)
                partial.unlink(missing_ok=True)
                return
            self._replace(change.model, path)

    def unloaded(self) -> frozenset[str]:
        """The models whose last change was an unload."""
        return frozenset(change.model for change in self.changes() if change.call.mark.change is ModelChange.UNLOAD)

    def changes(self) -> list[Change]:
        """The last change of each model, in the order in which they were noted."""
        with self._lock:
            return [change for _, change in self._found()]

    def _replace(self, model: str, path: Path) -> None:
        old = self._files.get(model)
        self._files[model] = path
        if old is not None:
            old.unlink(missing_ok=True)

    def _found(self) -> Iterator[tuple[Path, Change]]:
        names = sorted((path.name for path in self._folder.iterdir() if path.name.isdigit()), key=int)
        for name in names:
            path = self._folder / name
            try:
                change = _change_of(path.read_bytes())
            except (OSError, ValueError) as error:
                _log.error("a note of the load log cannot be read: %s", error)
                continue
            yield path, change


def _change_of(content: bytes) -> Change:
    """Raises ValueError for anything but a call that changes a model."""
    call, arguments = decode_call(content)
    if call.mark.change is None:
        raise ValueError(f"{call.name} changes no model")
    return Change(call, arguments)
