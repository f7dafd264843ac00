"""How several engines change together: all make a change, or, of a model that one engine has, that one does.

Source: docs/processes.md "Several engines".
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path

from trident.core.engine.protocol import ModelChange
from trident.core.errors import ServerError
from trident.core.remote.calls import CALLS, EngineGone
from trident.core.remote.connection import Connection
from trident.core.remote.control_log import REGISTER, Change, ControlLog, Pause, Subject, own_changes
from trident.core.remote.engine_client import RemoteEngine

_log = logging.getLogger("trident.engine")

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
