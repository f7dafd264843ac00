"""The memory budget of a multi-model endpoint: a model is loaded only if its estimated size fits into the free memory.

On a 507 the platform unloads another model and tries again. A container that the kernel kills loses all its models, so
a load is refused while some memory is still free. The memory of GPUs is in the ledger of the engine.
Source: docs/spec/sagemaker.md sections A5, B4 (Triton searches the texts of errors, after the allocation failed) and C.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from trident.adapters.sagemaker.layout import ModelFolder
from trident.core.lifecycle.memory import DeviceMemory, MemoryLedger, Need, Reservations
from trident.core.observability.hardware import MemoryState, host_memory, resident_bytes, trim_heap
from trident.core.repository.disk import FileLock, lock_exclusive, try_lock_exclusive

HOST = "container"
_MIB = 1 << 20
# The peak memory of a load for each byte of the model's files. ONNX Runtime 1.31 copies one matrix after another: 1.1
# was measured for 16 matrices of 16 MiB, 2.0 for one matrix of 256 MiB, and 1.0 after the load.
HOST_FACTOR = 1.5
HOST_EXTRA = 16 * _MIB


class MemoryBudget(MemoryLedger):
    """Admits loads while there is memory for them in the container."""

    def __init__(
        self,
        host: Callable[[], MemoryState | None] = host_memory,
        *,
        resident: Callable[[], int] = resident_bytes,
        trim: Callable[[], None] = trim_heap,
        others: Reservations | None = None,
    ) -> None:
        """`resident` is what the processes with the models use, `trim` returns freed memory to the system, and `others`
        is what other front ends load.
        """

        def read(devices: Collection[str]) -> dict[str, DeviceMemory]:
            state = host()
            return {} if state is None else {HOST: DeviceMemory(state.total, state.free, resident())}

        super().__init__(read, {HOST: ""}, trim=trim, others=others)

    @classmethod
    def of_machine(cls, *, limit: int | None = None) -> MemoryBudget:
        """The budget of this container. `limit`: the most bytes for this process, if less than the container's."""
        return cls(partial(_limited_memory, limit, resident_bytes))

    @classmethod
    def of_engines(cls, resident: Callable[[], int], others: Reservations, *, limit: int | None = None) -> MemoryBudget:
        """The budget of a front end, whose engines' processes use `resident` bytes, in this container.

        The engines return freed memory to the system themselves.
        """
        return cls(partial(_limited_memory, limit, resident), resident=resident, trim=lambda: None, others=others)

    @contextmanager
    def reservation(self, name: str, url: str, model: ModelFolder) -> Iterator[None]:
        """Reserve memory for `model` while the caller loads it inside the context, and measure what the load used.

        Raises OutOfMemory on entry if the memory is too short already. Waits only for other loads whose reservations
        leave too little.
        """
        with self.load(name, url, {HOST: int(model.weight_bytes * HOST_FACTOR) + HOST_EXTRA}):
            yield


def _limited_memory(limit: int | None, resident: Callable[[], int]) -> MemoryState | None:
    state = host_memory()
    if limit is None:
        return state
    own = MemoryState(limit, max(0, limit - resident()))
    return own if state is None or own.free < state.free else state


@dataclass(frozen=True, slots=True)
class _Reservation:
    lock: FileLock
    changes: int


class SharedReservations(Reservations):
    """One file for each load, locked by the front end that makes it: the lock of one that has died is free.

    `changes` counts what this and the other front ends reserve, and free.
    """

    pause_s = 0.1

    def __init__(self, folder: Path) -> None:
        """Make `folder` if it does not exist; all front ends of the server have the same."""
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)
        # Those of this process: what it changes itself it knows.
        self._own: set[Path] = set()
        self._own_changes = 0

    @contextmanager
    def admission(self) -> Iterator[None]:
        lock = lock_exclusive(self._folder / "admission")
        try:
            yield
        finally:
            lock.release()

    def needs(self) -> list[Need]:
        found = []
        for path in self._folder.glob("*.load"):
            if path in self._own:
                continue
            lock = try_lock_exclusive(path)
            if lock is not None:  # its process has died
                path.unlink(missing_ok=True)
                lock.release()
            else:
                found.append(orjson.loads(path.read_bytes()))
        return found

    def reserve(self, need: Need) -> Any:
        path = self._folder / f"{uuid.uuid4().hex}.load"
        lock = lock_exclusive(path)
        path.write_bytes(orjson.dumps(dict(need)))
        self._own.add(path)
        self._count()
        return _Reservation(lock, self._others_changes())

    def release(self, reservation: Any) -> bool:
        was_undisturbed = bool(self._others_changes() == reservation.changes)
        self._own.discard(reservation.lock.path)
        reservation.lock.path.unlink(missing_ok=True)
        reservation.lock.release()
        self._count()
        return was_undisturbed

    def disturb(self) -> None:
        with self.admission():
            self._count()

    def _count(self) -> None:
        changes = self._changes() + 1
        (self._folder / "changes").write_text(str(changes))
        self._own_changes += 1

    def _changes(self) -> int:
        try:
            return int((self._folder / "changes").read_text())
        except FileNotFoundError:
            return 0

    def _others_changes(self) -> int:
        return self._changes() - self._own_changes
