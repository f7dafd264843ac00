"""The instances of a version that cannot execute for a while, because their processes are started again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from trident.core.backends.backend import BackendInstance
from trident.core.errors import ServerStopping
from trident.core.scheduling.scheduler import Scheduler

_log = logging.getLogger("trident.lifecycle")


class PausedInstances:
    """Instances that get no work while another instance can execute. Any thread but an instance's."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._resting: list[BackendInstance] = []

    def change(self, instance: BackendInstance, serves: bool) -> None:
        """`instance` serves again, or does not serve. Blocks until it has finished what it executes."""
        with self._lock:
            try:
                if not serves:
                    self._scheduler.forget(instance)
                if not serves and instance not in self._resting:
                    self._scheduler.remove(instance)()
                    self._resting.append(instance)
                elif serves and instance in self._resting:
                    self._resting.remove(instance)
                    self._scheduler.add(instance)
            except (ValueError, ServerStopping) as error:
                # It is the last one, or was removed, or the version is being unloaded.
                _log.debug("instance '%s' stays as it is: %s", instance.placement.name, error)

    def remove(
        self, leaving: Sequence[BackendInstance], staying: Sequence[BackendInstance]
    ) -> Sequence[Callable[[], object]]:
        """Take `leaving` away for good, before one is waited for: none of them gets another sequence. Returns what
        `Scheduler.remove` does.

        If all of `staying` are paused, the first one gets work again, because a scheduler keeps an instance.
        """
        with self._lock:
            if leaving and all(instance in self._resting for instance in staying):
                self._resting.remove(staying[0])
                self._scheduler.add(staying[0])
            finishing = [_finished if each in self._resting else self._scheduler.remove(each) for each in leaving]
            self._resting = [each for each in self._resting if each not in leaving]
        return finishing


def _finished() -> None:
    """There is nothing to wait for."""
