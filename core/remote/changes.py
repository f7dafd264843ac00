"""The changes that clients made by request: the log from which a restarted engine repeats them, and how several engines
change together.

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
from trident.core.errors import AlreadyLoaded, ServerError
from trident.core.remote.calls import CALLS, EngineGone, EngineMethod, decode_call, encode_call
from trident.core.remote.connection import EngineConnection
from trident.core.remote.engine_client import RemoteEngine
from trident.core.repository.cache import try_lock_exclusive
from trident.core.shared_memory import RegionKind

_log = logging.getLogger("trident.engine")
_NEXT = ".next"
_BEGUN = ".begun"
_LOCK_PAUSE_S = 0.02
_TRACE = "change_trace"
_UNREGISTER = "unregister_regions"
_DIRECTORY = "load_directory"
REGISTER = {"register_system_region": RegionKind.SYSTEM, "register_cuda_region": RegionKind.CUDA}
# The calls that change settings, and the number of their first arguments that name the subject.
_SETTINGS = {"change_log": 0, _TRACE: 1}
Subject = tuple[str, ...]
"""Subject of a change. A later change of the same subject replaces the earlier one."""
Pause = Callable[[float], object]
"""Waits for some seconds; on the hub's thread it lets other greenlets run."""


class ControlChange(NamedTuple):
    """A call that changes models or settings, with all of its arguments. A model's name is the first of them."""

    call: EngineMethod
    arguments: list[Any]

    @property
    def is_of_model(self) -> bool:
        return self.call.mark.change is not None

    @property
    def title(self) -> str:
        """The model's name, or the name of the changed setting or region."""
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

    def undone(self, *, unload_dependents: bool) -> ControlChange | None:
        """Return the change that unregisters the region or unloads the model; None for other changes."""
        if self.call.name in REGISTER:
            return ControlChange(CALLS[_UNREGISTER], [REGISTER[self.call.name], self.arguments[0]])
        if self.call.mark.change is ModelChange.LOAD:
            return ControlChange(CALLS["unload_model"], [self.arguments[0], unload_dependents, False])
        return None


class ControlLog:
    """The last change of each subject, a file each, in a folder that only this server uses. Any thread; processes may
    share the folder.

    A file holds what a front end sends for the call, so all arguments of a load survive, files included.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        folder.mkdir(mode=0o700, exist_ok=True)
        # Of the files that were read so far, by their names and identities: some hold whole models, and another process
        # may remove a file and give its number to another one.
        self._subjects: dict[str, tuple[tuple[int, int, int], Subject]] = {}

    def note(self, change: ControlChange) -> None:
        """Record a change instead of the last one of the same subject. It is on disk when this returns.

        A failure to write is only logged, because the change itself was made.
        """
        with self._lock:
            # Unregistering without a name removes all regions of the kind.
            size = 2 if change.call.name == _UNREGISTER and not change.arguments[1] else None
            replaced = change.subject[:size]
            before = [path for path in self._paths() if self._subject_of(path)[:size] == replaced]
            if change.call.name == _TRACE:
                earlier = dict[str, Any]()
                for path in before:
                    earlier |= _read(path).arguments[1]
                change = ControlChange(change.call, [change.arguments[0], {**earlier, **change.arguments[1]}])
            if change.call.name != _UNREGISTER and not self._write(change):
                return
            self._remove(before)

    def forget(self, subject: Subject) -> None:
        """Remove the record of a subject, also of a change that a process began before it died."""
        with self._lock:
            self._remove([path for path in self._paths() if self._subject_of(path) == subject])
            self._begun(subject).unlink(missing_ok=True)

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)
            self._subjects.pop(path.name, None)

    def loaded(self) -> frozenset[str]:
        """Return the models whose last change was a load, and those that are being loaded."""
        changes = [*self.changes(), *self.unfinished()]
        return frozenset(change.title for change in changes if change.call.mark.change is ModelChange.LOAD)

    def unloaded(self) -> frozenset[str]:
        return frozenset(change.title for change in self.changes() if change.call.mark.change is ModelChange.UNLOAD)

    def changes(self) -> list[ControlChange]:
        """Return the last change of each subject, oldest first."""
        with self._lock:
            return list(_readable(self._paths()))

    def last(self, subject: Subject) -> ControlChange | None:
        with self._lock:
            return next(_readable([path for path in self._paths() if self._subject_of(path) == subject]), None)

    def subjects(self) -> list[Subject]:
        """Return the subjects, in the order of their last changes."""
        with self._lock:
            return [subject for path in self._paths() if (subject := self._subject_of(path))]

    @contextmanager
    def locked(self, subject: Subject, pause: Pause) -> Iterator[None]:
        """Lock a subject in all processes of the server, so that its changes are made one after the other."""
        folder = self._folder / "locks"
        folder.mkdir(mode=0o700, exist_ok=True)
        while (lock := try_lock_exclusive(folder / _file_name(subject))) is None:
            pause(_LOCK_PAUSE_S)
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def begun(self, change: ControlChange) -> Iterator[None]:
        """Record that a change has begun. The record stays if the process dies meanwhile. The caller holds its lock."""
        path = self._begun(change.subject)
        try:
            path.write_bytes(encode_call(change.call.name, change.arguments))
        except OSError as error:
            _log.error("cannot record the pending change of '%s': %s", change.title, error)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    def _begun(self, subject: Subject) -> Path:
        return self._folder / f"{_file_name(subject)}{_BEGUN}"

    def unfinished(self) -> list[ControlChange]:
        """Return the changes that are being made, and those that were when their process died."""
        return list(_readable(self._folder.glob(f"*{_BEGUN}")))

    def _write(self, change: ControlChange) -> bool:
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
            _log.error("cannot record the change of '%s' for a restarted engine: %s", change.title, error)
            return False
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        try:
            return sorted((path for path in self._folder.iterdir() if path.name.isdigit()), key=_number)
        except OSError as error:
            _log.error("cannot read the control log: %s", error)
            return []

    def _subject_of(self, path: Path) -> Subject:
        """Return the subject of a file, or () if it cannot be read."""
        try:
            status = path.stat()
        except OSError:
            return ()
        identity = status.st_ino, status.st_mtime_ns, status.st_size
        known = self._subjects.get(path.name)
        if known is None or known[0] != identity:
            known = self._subjects[path.name] = identity, next((change.subject for change in _readable([path])), ())
        return known[1]


def own_changes(folder: Path, number: int) -> Path:
    """Return the folder of the changes of one engine's own models, below that of the changes of all engines."""
    return folder / f"engine-{number}"


def _file_name(subject: Subject) -> str:
    return blake2b(repr(subject).encode("utf-8", "replace"), digest_size=8).hexdigest()


def _number(path: Path) -> int:
    return int(path.name)


def _readable(paths: Iterable[Path]) -> Iterator[ControlChange]:
    for path in paths:
        try:
            yield _read(path)
        except FileNotFoundError:  # another process has just replaced it
            continue
        except (OSError, ValueError, TypeError, KeyError) as error:
            _log.error("cannot read a file of the control log: %s", error)


def _read(path: Path) -> ControlChange:
    """Raises OSError, and other errors for what `ControlLog` has not written."""
    return ControlChange(*decode_call(path.read_bytes()))


class Restoration:
    """Repeats the recorded changes in a restarted engine, on one thread.

    Changes that cannot be repeated are logged. Source: docs/processes.md "When a process dies".
    """

    def __init__(self, engine: Engine, control_log: ControlLog) -> None:
        self._engine = engine
        self._control_log = control_log
        self._made: dict[Subject, ControlChange] = {}

    @property
    def is_needed(self) -> bool:
        return bool(self._control_log.subjects())

    def repeat(self, *, of_models: bool, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Repeat the changes in the log that were not repeated before: those of models, or those of settings.

        A change that is no longer in the log is undone: a region is removed, and a model unloaded. Directories go with
        the settings: before its start the engine only registers them. The platform loads one again that is missing.
        """
        for subject in [*self._control_log.subjects(), *self._made]:
            if is_stopping():
                return
            with self._control_log.locked(subject, time.sleep):
                made = self._made.get(subject)
                change = self._control_log.last(subject) or (made and made.undone(unload_dependents=True))
                if change is None or change == made:
                    continue
                is_directory = change.call.name == _DIRECTORY
                if (change.is_of_model and not is_directory) is not of_models:
                    continue
                self._made[subject] = change
                try:
                    change.call.ask(self._engine, change.arguments)
                except AlreadyLoaded:
                    continue  # this engine has loaded it since
                except ServerError as error:
                    _log.error("'%s' could not be restored: %s", change.title, error.message)
                    if is_directory:
                        self._control_log.forget(subject)


_CHOICE: Subject = ("choice of an engine",)


class ModelAssignment:
    """Places each model in one engine: with many models, a copy in each engine would multiply the memory.

    Any thread or greenlet may call `make`. Front ends in other processes see the same placement, through `folder`. Each
    engine has a control log of its own models, from which it loads them again after a restart.
    """

    def __init__(self, engines: Sequence[RemoteEngine], folder: Path, pause: Pause) -> None:
        self._engines = engines
        self._shared = ControlLog(folder)
        self._logs = [ControlLog(own_changes(folder, number)) for number in range(len(engines))]
        self._pause = pause

    def make(self, change: ControlChange) -> None:
        """Load a model in its engine, a new one in the engine with the fewest models; or unload it.

        Raises what that engine raises, and EngineGone without a connected engine.
        """
        with self._shared.locked(change.subject, self._pause):
            if change.call.mark.change is ModelChange.UNLOAD:
                self._unload(change)
            else:
                self._load(change)

    def _load(self, change: ControlChange) -> None:
        with ExitStack() as stack:
            with self._shared.locked(_CHOICE, self._pause):
                number = self._home(change.subject)
                if number is None:
                    # The number of models is all that is known beforehand of the work that they will be. The memory is
                    # that of one machine, wherever a model is.
                    connected = [each for each, engine in enumerate(self._engines) if engine.connection is not None]
                    if not connected:
                        raise self._engines[0].no_engine()
                    number = min(connected, key=lambda each: len(self._logs[each].loaded()))
                stack.enter_context(self._logs[number].begun(change))  # the next choice counts it
            with self._logs[number].locked(change.subject, self._pause):
                try:
                    self._engines[number].begin(change.call, change.arguments).result()
                except AlreadyLoaded:
                    last = self._logs[number].last(change.subject)
                    if last is None or last.call.mark.change is not ModelChange.LOAD:
                        self._logs[number].note(change)  # a front end died before it did
                    raise
                self._logs[number].note(change)

    def directories(self) -> dict[str, str]:
        """Return the directories of the control logs, which outlive engines. See Engine.directories."""
        changes = [change for log in self._logs for change in log.changes() if change.call.name == _DIRECTORY]
        return {name: origin for name, _, origin in (change.arguments for change in changes)}

    def _unload(self, change: ControlChange) -> None:
        number = self._home(change.subject)
        numbers = range(len(self._engines)) if number is None else [number]
        for each in numbers:
            engine, log = self._engines[each], self._logs[each]
            with log.locked(change.subject, self._pause):
                try:
                    engine.begin(change.call, change.arguments).result()
                except EngineGone as error:
                    # Its memory is free. If its next process has the model already, it finds the record.
                    _log.warning("skipping unload of '%s': %s", change.title, error)
                    log.note(change)
                else:
                    log.forget(change.subject)

    def _home(self, subject: Subject) -> int | None:
        """Return the number of the engine that has the model, also after a front end died during its load, or None."""
        for number, log in enumerate(self._logs):
            last = log.last(subject) or next((each for each in log.unfinished() if each.subject == subject), None)
            if last is not None and last.call.mark.change is ModelChange.LOAD:
                return number
        return None


class Broadcast:
    """Makes changes in all engines.

    Any thread or greenlet may call `make`. Front ends in other processes make changes through the same folder.

    Changes of one subject are made one after the other, whichever front end was asked. One engine makes a change first,
    the others only if it succeeded: most changes that cannot be made fail there, and files are downloaded once.
    """

    def __init__(self, engines: Sequence[RemoteEngine], folder: Path, pause: Pause) -> None:
        """`folder` has the control log, from which a restarted engine repeats the changes."""
        self._engines = engines
        self.log = ControlLog(folder)
        self._pause = pause

    def make(self, change: ControlChange) -> None:
        """Have all connected engines make `change`, and record it for the others.

        Raises what the first engine raises, and EngineGone without one. If a later one refuses, the change is reverted
        in the earlier ones, and its error is raised.
        """
        with self.log.locked(change.subject, self._pause):
            self._make(change)

    def finish_unfinished(self) -> None:
        """Make the changes that a front end had begun when it died, as only some engines may have made them. Blocks."""
        for change in self.log.unfinished():
            with self.log.locked(change.subject, self._pause):
                if all(change.subject != each.subject for each in self.log.unfinished()):
                    continue  # another front end was making it, and is done
                _log.warning("repeating the change of '%s': a front end died during it", change.title)
                try:
                    self._make(change)
                except ServerError as error:
                    _log.error("cannot repeat the change of '%s': %s", change.title, error.message)

    def _make(self, change: ControlChange) -> None:
        untold = self._untold([])
        if not untold:
            raise self._engines[0].no_engine()
        first = untold[0]
        told = [first.connection]
        reverse = self._reverse(first, change)
        # Loads take long enough for a front end to die meanwhile; other changes take less than a record of them.
        with self.log.begun(change) if change.is_of_model else nullcontext():
            first.begin(change.call, change.arguments).result()
            made = [first]
            self._tell_others(change, told, made, reverse)
            self.log.note(change)
            # An engine that connects after the next look finds the record: it reads the log again when all front ends
            # have connected.
            self._tell_others(change, told, made, reverse)

    def _untold(self, told: Sequence[EngineConnection | None]) -> list[RemoteEngine]:
        return [each for each in self._engines if each.connection is not None and each.connection not in told]

    def _tell_others(
        self,
        change: ControlChange,
        told: list[EngineConnection | None],
        made: list[RemoteEngine],
        reverse: ControlChange | None,
    ) -> None:
        """Tell all others at once. If one refuses, those in `made` make `reverse`, and its error is raised."""
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
                    _log.warning("an engine ended during a change: %s", error.message)
                except ServerError as error:
                    refusal = error
            if refusal is None:
                continue
            if reverse is not None:
                for engine in made:
                    try:
                        engine.begin(reverse.call, reverse.arguments).result()
                    except ServerError as error:
                        _log.error("'%s' differs between the engines: %s", change.title, error.message)
            raise refusal

    def _reverse(self, engine: RemoteEngine, change: ControlChange) -> ControlChange | None:
        """Return the change that restores the state before `change`; None if none is needed, or none can."""
        reverse = change.undone(unload_dependents=False)
        if change.call.mark.change is not ModelChange.LOAD:
            return reverse
        earlier = self.log.last(change.subject)
        if earlier is not None:
            return earlier
        try:
            engine.is_model_ready(change.arguments[0])
        except ServerError:
            return reverse
        return ControlChange(CALLS["load_model"], [change.arguments[0], {}])
