"""The claims of the instances of one model version."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from core.backends.base import BackendInstance
from core.scheduling.rate_limiter.claim import Claim
from core.scheduling.rate_limiter.rate_limiter import RateLimiter


class InstanceClaims:
    """Any thread. Without a `limiter` no instance has a claim."""

    def __init__(self, limiter: RateLimiter | None = None) -> None:
        self._limiter = limiter
        self._lock = threading.Lock()
        self._claims: dict[int, Claim] = {}  # by the identity of the instance; guarded by the lock

    def enter(self, instance: BackendInstance, model: str) -> None:
        """Let the limiter know a new instance. Raises ConfigInvalid if it needs more than there can be."""
        claim = self._limiter.enter(instance.placement, model) if self._limiter is not None else None
        if claim is not None:
            with self._lock:
                self._claims[id(instance)] = claim

    def of(self, instance: BackendInstance) -> Claim | None:
        """The claim of an instance; None if its executions hold nothing."""
        with self._lock:
            return self._claims.get(id(instance))

    def leave(self, instance: BackendInstance) -> None:
        """Forget an instance that is being closed."""
        with self._lock:
            claim = self._claims.pop(id(instance), None)
        if claim is not None and self._limiter is not None:
            self._limiter.leave(claim)

    @contextmanager
    def turn(self, instance: BackendInstance) -> Iterator[None]:
        """Hold what an execution of `instance` needs, while no scheduler has it. Blocks until it is its turn."""
        claim = self.of(instance)
        if claim is None:
            yield
            return
        if not claim.request():
            claim.wait()
        try:
            yield
        finally:
            claim.end()
