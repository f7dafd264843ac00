"""Retries of a failing storage: how long to wait between them and when to stop."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from core.errors import RepositoryUnavailable
from core.repository.stores.object_store import TransientError

T = TypeVar("T")


class GivenUp(Exception):
    """The work was told to stop. The caller that stopped it knows why."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter, so that many servers do not return to a storage at the same moment.

    It stops after `attempts` failures in a row. `base` and `cap` are in seconds. `pause` waits for an event with a
    timeout in seconds and `draw` returns a number in [0, 1); tests replace both.
    """

    attempts: int = 6
    base: float = 0.2
    cap: float = 10.0
    pause: Callable[[threading.Event, float], object] = threading.Event.wait
    draw: Callable[[], float] = random.random

    def wait(self, failures: int, stop: threading.Event) -> None:
        """Wait after the `failures`-th failure in a row. Raises GivenUp as soon as `stop` is set."""
        self.pause(stop, self.draw() * min(self.cap, self.base * 2.0 ** (failures - 1)))
        if stop.is_set():
            raise GivenUp

    def call(self, operation: Callable[[], T], what: str, stop: threading.Event) -> T:
        """The result of `operation`, called again after each TransientError.

        Raises RepositoryUnavailable ("failed to `what` ...") after the last attempt, GivenUp if `stop` is set before.
        """
        failures = 0
        while True:
            try:
                return operation()
            except TransientError as error:
                failures += 1
                if failures >= self.attempts:
                    raise RepositoryUnavailable(f"failed to {what} in {failures} attempts: {error}") from error
            self.wait(failures, stop)
