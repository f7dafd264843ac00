"""How an engine that was started again gets what clients had changed in the last one, or in the others meanwhile.

Source: docs/processes.md "When a process dies".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from core.engine.call import ModelChange
from core.engine.protocol import Engine
from core.errors import ServerError
from core.remote.calls.calls import CALLS
from core.remote.control_log import REGISTER, Change, ControlLog, Subject

_log = logging.getLogger("trident.engine")


class Restoration:
    """Used on one thread. Changes that cannot be repeated are logged."""

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
