"""What clients have changed by request: the log from which a restarted engine learns it, and how several engines change
together.

Source: docs/spec/repository.md section 1.3 (control mode explicit), docs/architecture.md section 5, docs/processes.md
"Several engines".
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from trident.core.engine.protocol import Engine, ModelChange
from trident.core.errors import ServerError
from trident.core.remote.calls import CALLS, Call, EngineGone, decode_call, encode_call
from trident.core.remote.connection import Connection
from trident.core.remote.engine_client import RemoteEngine
from trident.core.repository.cache import try_lock_exclusive
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


_CHOICE: Subject = ("choice of an engine",)


class ModelAssignment:
    """Changes of models of which each has one engine: where models are many, a copy of each would multiply the memory.

    Any thread or greenlet may call `make`. Front ends in other processes see the same placement, through `folder`.

    An engine has a control log of its own: of the models that are its own. From it, it loads them again when it was
    started again.
    """

    def __init__(self, engines: Sequence[RemoteEngine], folder: Path, pause: Pause) -> None:
        self._engines = engines
        self._shared = ControlLog(folder)
        self._logs = [ControlLog(own_changes(folder, number)) for number in range(len(engines))]
        self._pause = pause

    def make(self, change: Change) -> None:
        """Load a model in its engine, or in the one that is best for a new model; or unload it.

        Raises what that engine raises, and EngineGone if no engine is there.
        """
        with self._shared.locked(change.subject, self._pause):
            if change.call.mark.change is ModelChange.UNLOAD:
                self._unload(change)
            else:
                self._load(change)

    def _load(self, change: Change) -> None:
        with ExitStack() as stack:
            with self._shared.locked(_CHOICE, self._pause):
                number = self._home(change.subject)
                if number is None:
                    number = self._emptiest()
                stack.enter_context(self._logs[number].begun(change))  # the next choice counts it
            with self._logs[number].locked(change.subject, self._pause):
                self._engines[number].begin(change.call, change.arguments).result()
                self._logs[number].note(change)

    def _unload(self, change: Change) -> None:
        number = self._home(change.subject)
        numbers = range(len(self._engines)) if number is None else [number]
        for each in numbers:
            engine, log = self._engines[each], self._logs[each]
            with log.locked(change.subject, self._pause):
                try:
                    engine.begin(change.call, change.arguments).result()
                except EngineGone as error:
                    # Its memory is free. If its next process has the model already, it finds the note.
                    _log.warning("'%s' was to be unloaded from an engine that is not there: %s", change.what, error)
                    log.note(change)
                else:
                    log.forget(change.subject)

    def _home(self, subject: Subject) -> int | None:
        """Return the number of the engine that has the model, or None."""
        for number, log in enumerate(self._logs):
            last = log.last(subject)
            if last is not None and last.call.mark.change is ModelChange.LOAD:
                return number
        return None

    def _emptiest(self) -> int:
        """The engine with the fewest models. The memory is that of one machine, wherever a model is; the number of
        models is all that is known beforehand of the work that they will be.
        """
        there = [number for number, engine in enumerate(self._engines) if engine.connection is not None]
        if not there:
            raise self._engines[0].no_engine()
        return min(there, key=lambda number: len(self._logs[number].loaded()))


class Broadcast:
    """Changes that all engines make.

    Any thread or greenlet may call `make`. Front ends in other processes make changes through the same folder.

    Changes of the same thing are made one after the other, whichever front end was asked for them. One engine makes a
    change first, the others only if it succeeded: most changes that cannot be made fail there, and what has to be
    downloaded for it is downloaded once.
    """

    def __init__(self, engines: Sequence[RemoteEngine], folder: Path, pause: Pause) -> None:
        """`folder` has the control log, from which an engine that was away learns what it has missed."""
        self._engines = engines
        self._log = ControlLog(folder)
        self._pause = pause

    def make(self, change: Change) -> None:
        """Have all engines that are there make `change`, and note it for the others.

        Raises what the first engine raises, and EngineGone if there is none. If a later one refuses, the earlier ones
        go back, and its error is raised.
        """
        with self._log.locked(change.subject, self._pause):
            self._make(change)

    def finish_unfinished(self) -> None:
        """Make the changes that a front end had begun when it died, and that only some engines may have. Blocks."""
        for change in self._log.unfinished():
            with self._log.locked(change.subject, self._pause):
                if all(change.subject != each.subject for each in self._log.unfinished()):
                    continue  # another front end was making it, and is done
                _log.warning("'%s' was being changed when a front end died: it is changed again", change.what)
                try:
                    self._make(change)
                except ServerError as error:
                    _log.error("'%s' could not be changed again: %s", change.what, error.message)

    @property
    def has_unfinished(self) -> bool:
        return bool(self._log.unfinished())

    def _make(self, change: Change) -> None:
        untold = self._untold([])
        if not untold:
            raise self._engines[0].no_engine()
        first = untold[0]
        told = [first.connection]
        back = self._way_back(first, change)
        # Loads take long enough for a front end to die meanwhile; other changes take less than a record of them.
        with self._log.begun(change) if change.is_of_model else nullcontext():
            first.begin(change.call, change.arguments).result()
            made = [first]
            self._tell_others(change, told, made, back)
            self._log.note(change)
            # An engine that connects after the next look finds the note: it reads the log again when all front ends
            # have connected.
            self._tell_others(change, told, made, back)

    def _untold(self, told: Sequence[Connection | None]) -> list[RemoteEngine]:
        """The engines that are there and whose present process was not told."""
        return [each for each in self._engines if each.connection is not None and each.connection not in told]

    def _tell_others(
        self, change: Change, told: list[Connection | None], made: list[RemoteEngine], back: Change | None
    ) -> None:
        """Tell all others at once. If one refuses, those in `made` go back and its error is raised."""
        while others := self._untold(told):
            refusal: ServerError | None = None
            asked = []
            for engine in others:
                told.append(engine.connection)
                try:
                    asked.append((engine, engine.begin(change.call, change.arguments)))
                except EngineGone:
                    continue
            for engine, call in asked:
                try:
                    call.result()
                    made.append(engine)
                except EngineGone as error:  # its next process will find the change in the log
                    _log.warning("an engine has ended while it had to make a change: %s", error.message)
                except ServerError as error:
                    refusal = error
            if refusal is not None:
                self._go_back(change, made, back)
                raise refusal

    def _way_back(self, engine: RemoteEngine, change: Change) -> Change | None:
        """The change that brings back what was before `change`; None if it needs none, or there is none."""
        name = change.call.name
        if name in REGISTER:
            return Change(CALLS["unregister_regions"], [REGISTER[name], change.arguments[0]])
        if change.call.mark.change is not ModelChange.LOAD:
            return None
        model = change.arguments[0]
        earlier = self._log.last(change.subject)
        if earlier is not None:
            return earlier
        try:
            engine.is_model_ready(model)
        except ServerError:
            return Change(CALLS["unload_model"], [model, False, False])
        return Change(CALLS["load_model"], [model, {}])

    def _go_back(self, change: Change, made: Sequence[RemoteEngine], back: Change | None) -> None:
        if back is None:
            return
        for engine in made:
            try:
                engine.begin(back.call, back.arguments).result()
            except ServerError as error:
                _log.error("'%s' is not the same in all engines now: %s", change.what, error.message)
