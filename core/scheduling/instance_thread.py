"""The native thread of one instance, and what its scheduler notes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from core.backends.base import BackendInstance
from core.scheduling.instance import ModelInstance
from core.scheduling.policy import Wait


class InstanceThread:
    """Runs `serve` with itself, once. All attributes but `backend` and `instance` are the scheduler's, under its lock.

    `token` is a binary semaphore: locked while there is nothing to wake for. A lock costs no more than any other way
    to wake a thread (29 µs there and back on the reference machine, as `SimpleQueue`) and waits with a time limit.

    What it knows of the scheduler goes when the thread ends: nothing of a model that was unloaded waits for the
    collector of cycles, and its memory is free at once.
    """

    def __init__(
        self, backend: BackendInstance, instance: ModelInstance, serve: Callable[[InstanceThread], None]
    ) -> None:
        self.backend = backend
        self.instance = instance
        self.token = threading.Lock()
        self.token.acquire()
        self.resting = False
        self.woken = False
        self.lent = False  # another thread executes on the instance, while this one rests
        self.retired = False
        self.taken = 0
        self.wait = Wait(0, 0, None)
        self._thread = threading.Thread(target=serve, args=(self,), name=f"trident-{instance.name}", daemon=True)

    @property
    def may_be_lent(self) -> bool:
        return self.backend.may_run_inline

    @property
    def is_current(self) -> bool:
        """Whether this is asked on the thread itself."""
        return self._thread is threading.current_thread()

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float | None) -> bool:
        """Whether the thread has ended; does not wait for the calling thread itself, nor for one never started."""
        if self._thread.ident is not None and not self.is_current:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()
