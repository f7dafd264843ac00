"""Models that live on one engine each: which engine that is, and the changes that it makes.

For a server whose models are many, and loaded by request: a copy of each in every engine would multiply the memory.
Source: docs/processes.md "Several engines".
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from core.engine.call import ModelChange
from core.remote.calls.remote_error import EngineGone
from core.remote.client import RemoteEngine
from core.remote.control_log import Change, ControlLog, Pause, Subject, own_changes

_log = logging.getLogger("trident.engine")

_CHOICE: Subject = ("choice of an engine",)


class Placement:
    """Any thread or greenlet may call `make`. Front ends in other processes see the same placement, through `folder`.

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
        """The number of the engine that has the model, None for a model that none has."""
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
