"""How far the start of a server is, and which of its models failed."""

from __future__ import annotations

import threading

from trident.core.lifecycle.models import Models
from trident.core.lifecycle.state import Phase, ServingPhase


class StartProgress:
    """Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.phase = Phase.STARTING
        self._loading: list[str] = []
        self._done = 0
        self._total = 0
        self._failures: dict[str, str] = {}
        self._listed = threading.Event()
        self._ended = threading.Event()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout_s: float) -> bool:
        return self._ended.wait(timeout_s)

    def wait_listed(self, timeout_s: float) -> bool:
        """Return whether the repositories were read, or the start ended, within `timeout_s` seconds. Blocks."""
        return self._listed.wait(timeout_s)

    def begin(self, total: int) -> None:
        """STARTING -> LOADING: the start has `total` models."""
        with self._lock:
            self._total = total
            if self.phase is Phase.STARTING:
                self.phase = Phase.LOADING
        self._listed.set()

    def begin_model(self, name: str) -> None:
        with self._lock:
            self._loading.append(name)

    def end_model(self, name: str, failure: str) -> None:
        with self._lock:
            self._loading.remove(name)
            if failure:
                self._failures[name] = failure
            else:
                self._done += 1

    def fail(self, what: str, reason: str) -> None:
        """Record a failure of a model, or of anything else that the start needs."""
        with self._lock:
            self._failures[what] = reason

    def end(self) -> None:
        """LOADING -> READY, or FAILED if anything failed."""
        with self._lock:
            if self.phase is not Phase.EXITING:
                self.phase = Phase.FAILED if self._failures else Phase.READY
        self._listed.set()
        self._ended.set()

    def exit(self) -> None:
        with self._lock:
            self.phase = Phase.EXITING

    def serving_phase(self, models: Models) -> ServingPhase:
        """The phase in detail.

        `done` counts the models of the start that were loaded, not those that failed. After the start, `model` and
        `failures` are the models that are not what their repository has now, whether or
        not they keep the server unready, and what the start did not find.
        That looks at every model, so it is not for a hot path.
        """
        with self._lock:
            name, loading, failures = self.phase, self._loading[:1], dict(self._failures)
            done, total = self._done, self._total
        if self.has_ended:
            # A model that failed at the start may serve by now.
            unready = models.unready()
            known = models.names()
            done += sum(what in known and what not in unready for what in failures)
            loading = [model for model, reason in unready.items() if not reason]
            failures = {what: reason for what, reason in failures.items() if what not in known}
            failures |= {model: reason for model, reason in unready.items() if reason}
        return ServingPhase(name=name, model=loading[0] if loading else "", done=done, total=total, failures=failures)
