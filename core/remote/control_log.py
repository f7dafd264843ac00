"""The control log: what clients have changed by request, so that a restarted engine has it too.

Source: docs/spec/repository.md section 1.3 (control mode explicit), docs/architecture.md section 5.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from trident.core.engine.protocol import Engine, ModelChange
from trident.core.errors import ServerError
from trident.core.remote.calls import CALLS, Call, decode_call, encode_call
from trident.core.repository.disk import try_lock_exclusive
from trident.core.shared_memory import RegionKind

_log = logging.getLogger("trident.engine")
_NEXT = ".next"
_BEGUN = ".begun"
_LOCK_PAUSE_S = 0.02
_TRACE = "change_trace"
_UNREGISTER = "unregister_regions"
REGISTER = {"register_system_region": RegionKind.SYSTEM, "register_cuda_region": RegionKind.CUDA}
# The calls that change settings, and how many of their first arguments say whose.
_SETTINGS = {"change_log": 0, _TRACE: 1}

Subject = tuple[str, ...]
"""Names the thing that a change is about. A later change of the same thing replaces the earlier one."""

Pause = Callable[[float], object]
"""Waits for some seconds, without holding up the hub if it is called there."""


class Change(NamedTuple):
    """A call that changes models or settings, with all of its arguments. A model's name is the first of them."""

    call: Call
    arguments: list[Any]

    @property
    def is_of_model(self) -> bool:
        return self.call.mark.change is not None

    @property
    def what(self) -> str:
        """The model's name; for other changes what is changed."""
        return " ".join(self.subject[1:]) or self.call.name

    @property
    def subject(self) -> Subject:
        if self.is_of_model:
            return "model", self.arguments[0]
        if self.call.name == _UNREGISTER:
            return "region", self.arguments[0].value, self.arguments[1]
        if self.call.name in REGISTER:
            return "region", REGISTER[self.call.name].value, self.arguments[0]
        return (self.call.name, *self.arguments[: _SETTINGS[self.call.name]])

    def repeat(self, engine: Engine) -> None:
        """Make the change again. Raises what the call raises."""
        self.call.ask(engine, self.arguments)


class ControlLog:
    """The last change of each subject, one file for each in a folder that only this server uses. Any thread; processes
    may share the folder.

    A file holds what a front end sends for the call, so all arguments of a load survive, files included.
    """

    def __init__(self, folder: Path) -> None:
        """Make `folder` if it does not exist."""
        self._folder = folder
        self._lock = threading.Lock()
        folder.mkdir(mode=0o700, exist_ok=True)
        # Of the files that were read so far: some hold whole models.
        self._subjects: dict[str, Subject] = {}

    def note(self, change: Change) -> None:
        """Record a change instead of the last one of the same subject. It is on disk when this returns.

        If it cannot be written only the log says so, because the change itself was made.
        """
        with self._lock:
            before = [path for path in self._paths() if _is_replaced(self._subject_of(path), change)]
            if change.call.name == _TRACE:
                earlier = dict[str, Any]()
                for path in before:
                    earlier |= _read(path).arguments[1]
                change = Change(change.call, [change.arguments[0], {**earlier, **change.arguments[1]}])
            if change.call.name != _UNREGISTER and not self._write(change):
                return
            self._remove(before)

    def forget(self, subject: Subject) -> None:
        """Remove what was noted of a subject, and what was begun with it by a process that is no more."""
        with self._lock:
            self._remove([path for path in self._paths() if self._subject_of(path) == subject])
            self._begun(subject).unlink(missing_ok=True)

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)
            self._subjects.pop(path.name, None)

    def loaded(self) -> frozenset[str]:
        """The models whose last change was a load, and those that are being loaded."""
        changes = [*self.changes(), *self.unfinished()]
        return frozenset(change.what for change in changes if change.call.mark.change is ModelChange.LOAD)

    def unloaded(self) -> frozenset[str]:
        """The models whose last change was an unload."""
        return frozenset(change.what for change in self.changes() if change.call.mark.change is ModelChange.UNLOAD)

    def changes(self) -> list[Change]:
        """The last change of each subject, in the order in which they were noted."""
        with self._lock:
            return list(_readable(self._paths()))

    def last(self, subject: Subject) -> Change | None:
        """The last change of `subject`, None if there was none."""
        with self._lock:
            return next(_readable([path for path in self._paths() if self._subject_of(path) == subject]), None)

    def subjects(self) -> list[Subject]:
        """Return the changed things, in the order of their last changes."""
        with self._lock:
            return [subject for path in self._paths() if (subject := self._subject_of(path))]

    @contextmanager
    def locked(self, subject: Subject, pause: Pause) -> Iterator[None]:
        """Hold the lock of a subject, in all processes of the server: its changes are made one after the other."""
        folder = self._folder / "locks"
        folder.mkdir(mode=0o700, exist_ok=True)
        while (lock := try_lock_exclusive(folder / _file_name(subject))) is None:
            pause(_LOCK_PAUSE_S)
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def begun(self, change: Change) -> Iterator[None]:
        """Record that a change has begun. The record stays if the process dies meanwhile. The caller holds its lock."""
        path = self._begun(change.subject)
        try:
            path.write_bytes(encode_call(change.call.name, change.arguments))
        except OSError as error:
            _log.error("if this process dies, nobody will know that '%s' was being changed: %s", change.what, error)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    def _begun(self, subject: Subject) -> Path:
        return self._folder / f"{_file_name(subject)}{_BEGUN}"

    def unfinished(self) -> list[Change]:
        """The changes that are being made, and those that were when their process died."""
        return list(_readable(self._folder.glob(f"*{_BEGUN}")))

    def _write(self, change: Change) -> bool:
        content = encode_call(change.call.name, change.arguments)
        partial = self._folder / f"{os.getpid()}{_NEXT}"
        try:
            partial.write_bytes(content)
            number = max(map(_number, self._paths()), default=0)
            while True:
                number += 1
                try:
                    os.link(partial, self._folder / str(number))  # another process may have taken the number
                    return True
                except FileExistsError:
                    continue
        except OSError as error:
            _log.error("a restarted engine will not know that '%s' was changed: %s", change.what, error)
            return False
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        try:
            return sorted((path for path in self._folder.iterdir() if path.name.isdigit()), key=_number)
        except OSError as error:
            _log.error("the control log cannot be read: %s", error)
            return []

    def _subject_of(self, path: Path) -> Subject:
        """Return the subject of a file, or () if it cannot be read."""
        if path.name not in self._subjects:
            self._subjects[path.name] = next((change.subject for change in _readable([path])), ())
        return self._subjects[path.name]


def own_changes(folder: Path, number: int) -> Path:
    """The folder with the changes of one engine's own models, below that of the changes which all engines make."""
    return folder / f"engine-{number}"


def _file_name(subject: Subject) -> str:
    return blake2b(repr(subject).encode("utf-8", "replace"), digest_size=8).hexdigest()


def _number(path: Path) -> int:
    return int(path.name)


def _readable(paths: Iterable[Path]) -> Iterator[Change]:
    for path in paths:
        try:
            yield _read(path)
        except FileNotFoundError:  # another process has just replaced it
            continue
        except (OSError, ValueError, TypeError, KeyError) as error:
            _log.error("a note of the control log cannot be read: %s", error)


def _is_replaced(earlier: Subject, by: Change) -> bool:
    """Return whether `by` replaces a change of `earlier`. Removing regions without a name removes all of their kind."""
    subject = by.subject
    if by.call.name == _UNREGISTER and not by.arguments[1]:
        return earlier[:2] == subject[:2]
    return earlier == subject


def _read(path: Path) -> Change:
    """Raises OSError, and other errors for what `ControlLog` has not written."""
    return Change(*decode_call(path.read_bytes()))


class Restoration:
    """Repeats the noted changes in an engine that was started again, on one thread.

    Changes that cannot be repeated are logged. Source: docs/processes.md "When a process dies".
    """

    def __init__(self, engine: Engine, control_log: ControlLog) -> None:
        self._engine = engine
        self._control_log = control_log
        self._made: dict[Subject, Change] = {}

    @property
    def is_needed(self) -> bool:
        """Whether anything was changed."""
        return bool(self._control_log.subjects())

    def repeat(self, *, of_models: bool, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Repeat the changes in the log that were not repeated before: those of models, or those of settings.

        What was noted no longer is undone here: a region is removed, and a model unloaded.
        """
        for subject in [*self._control_log.subjects(), *self._made]:
            if (subject[0] == "model") is of_models and not is_stopping():
                with self._control_log.locked(subject, time.sleep):
                    self._repeat(subject)

    def _repeat(self, subject: Subject) -> None:
        change = self._control_log.last(subject)
        made = self._made.get(subject)
        if change is None and made is not None:
            change = _undone(made)
        if change is None or change == made:
            return
        self._made[subject] = change
        try:
            change.repeat(self._engine)
        except ServerError as error:
            _log.error("'%s' could not be restored: %s", change.what, error.message)


def _undone(made: Change) -> Change | None:
    if made.call.name in REGISTER:
        return Change(CALLS["unregister_regions"], [REGISTER[made.call.name], made.arguments[0]])
    if made.call.mark.change is ModelChange.LOAD:
        return Change(CALLS["unload_model"], [made.arguments[0], True, False])
    return None
