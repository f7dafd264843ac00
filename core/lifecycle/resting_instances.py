"""Instances that cannot execute for a while, because their process is being started again."""

from __future__ import annotations

import logging
import threading

from core.backends.base import BackendInstance
from core.errors import ServerStopping
from core.scheduling.protocol import Scheduler

_log = logging.getLogger("trident.lifecycle")


class RestingInstances:
    """They get no work from the scheduler as long as another instance can execute. Any thread but an instance's."""

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
                    self._scheduler.remove(instance)
                    self._resting.append(instance)
                elif serves and instance in self._resting:
                    self._resting.remove(instance)
                    self._scheduler.add(instance)
            except (ValueError, ServerStopping) as error:
                # It is the last one, or was removed, or the version is being unloaded.
                _log.debug("instance '%s' stays as it is: %s", instance.placement.name, error)

    def remove(self, instance: BackendInstance) -> None:
        """Take the instance away for good; see `Scheduler.remove`."""
        with self._lock:
            if instance in self._resting:
                self._resting.remove(instance)
            else:
                self._scheduler.remove(instance)
