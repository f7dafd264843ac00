"""The memory budget of a multi-model endpoint: a model is loaded only if its estimated size fits into the free memory.

On a 507 the platform unloads another model and tries again. A container that the kernel kills loses all its models, so
a load is refused while some memory is still free.
Source: docs/spec/sagemaker.md sections A5, B4 (Triton searches the texts of errors, after the allocation failed) and C.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from trident.adapters.sagemaker.layout import ModelFolder
from trident.core.config.autocomplete import GpuIds, fill_identity, normalize
from trident.core.config.schema import ModelConfig, ModelInstanceGroup, copy_of
from trident.core.errors import OutOfMemory
from trident.core.observability.hardware import MemoryState, gpu_memory, host_memory, resident_bytes, trim_heap
from trident.core.repository.disk import FileLock, lock_exclusive, try_lock_exclusive
from trident.core.repository.repository import ModelDirectory, detection_files

HOST = "container"
_MIB = 1 << 20
# The peak memory of a load for each byte of the model's files. ONNX Runtime 1.31 copies one matrix after another: 1.1
# was measured for 16 matrices of 16 MiB, 2.0 for one matrix of 256 MiB, and 1.0 after the load.
HOST_FACTOR = 1.5
HOST_EXTRA = 16 * _MIB
# ONNX Runtime's arena on a GPU grows by powers of two.
GPU_FACTOR = 2.0
GPU_EXTRA = 64 * _MIB
_RESERVE_PART = 20
_RESERVE_LEAST = 64 * _MIB
_RESERVE_MOST = 512 * _MIB
_RECORDS_AT_MOST = 10_000


Need: TypeAlias = Mapping[str, int]
"""Bytes by device."""

GpuIdsOf = Callable[[ModelConfig], GpuIds]
"""The GPUs that the instances of a model may use."""


def _no_gpus(config: ModelConfig) -> GpuIds:
    return ()


def reserve_of(total: int) -> int:
    """The bytes of `total` that are kept for requests and their tensors; no model may use them."""
    return min(max(total // _RESERVE_PART, _RESERVE_LEAST), _RESERVE_MOST)


@dataclass(slots=True, eq=False)
class _Load:
    """A load in progress. In bytes by device, `need` is reserved for it and `before` was in use when it began.

    `is_alone`: the budget knows of no other change to the memory since then.
    """

    name: str
    url: str
    need: Need
    before: Mapping[str, int]
    is_alone: bool
    reservation: object = None


class MemoryBudget:
    """Admits loads while there is memory for them. Any native thread; it blocks on files and on the GPU driver."""

    def __init__(
        self,
        host: Callable[[], MemoryState | None] = host_memory,
        gpus: Callable[[], Sequence[MemoryState | None]] = tuple,
        *,
        gpu_ids: GpuIdsOf = _no_gpus,
        resident: Callable[[], int] = resident_bytes,
        trim: Callable[[], None] = trim_heap,
        others: Reservations | None = None,
    ) -> None:
        """`gpus` returns one entry for each GPU number, None for an unknown one, which is not checked. `gpu_ids` gives
        the GPUs that a model may use. `resident` is what the processes with the models use, `trim` returns freed memory
        to the system, and `others` is what other front ends load.
        """
        self._host = host
        self._gpus = gpus
        self._gpu_ids = gpu_ids
        self._resident = resident
        self._trim = trim
        self._others = others or Reservations()
        self._changed = threading.Condition()
        self._running: list[_Load] = []
        # The bytes that models used, by url and device; the latest load is at the end.
        self._taken: OrderedDict[str, Mapping[str, int]] = OrderedDict()

    @classmethod
    def of_machine(
        cls, *, gpu_ids: GpuIdsOf = _no_gpus, visible_gpus: str | None = None, limit: int | None = None
    ) -> MemoryBudget:
        """The budget of this container. `limit`: the most bytes for this process, if less than the container's."""
        return cls(partial(_limited_memory, limit, resident_bytes), partial(_gpu_memory, visible_gpus), gpu_ids=gpu_ids)

    @classmethod
    def of_engines(cls, resident: Callable[[], int], others: Reservations, *, limit: int | None = None) -> MemoryBudget:
        """The budget of a front end, whose engines' processes use `resident` bytes, in this container.

        The engines return freed memory to the system themselves. Their GPUs are not checked before a load: each sees
        only its own.
        """
        return cls(partial(_limited_memory, limit, resident), resident=resident, trim=lambda: None, others=others)

    @contextmanager
    def reservation(self, name: str, url: str, model: ModelFolder) -> Iterator[None]:
        """Reserve memory for `model` while the caller loads it inside the context, and measure what the load used.

        Raises OutOfMemory on entry if the memory is too short already. Waits only for other loads whose reservations
        leave too little.
        """
        load = self._admit(name, url, model)
        try:
            yield
        except BaseException:
            self._end(load, is_loaded=False)
            raise
        self._end(load, is_loaded=True)

    def give_back(self) -> None:
        """Return the memory of an unloaded model to the system, and wake the loads that wait for it."""
        self._trim()
        with self._changed:
            self._disturb()
            self._others.disturb()
            self._changed.notify_all()

    def taken(self, url: str) -> Mapping[str, int]:
        """The bytes by device that the last load from `url` used; empty if it was not measured."""
        with self._changed:
            return self._taken.get(url, {})

    def _admit(self, name: str, url: str, model: ModelFolder) -> _Load:
        with self._changed:
            need = self._need(url, model)
            while True:
                with self._others.admission():
                    states = self._states(need)
                    _refuse_without_memory(name, need, states)
                    others = self._others.needs()
                    if _fits_beside(need, states, [*(load.need for load in self._running), *others]):
                        self._disturb()
                        is_alone = not self._running and not others
                        load = _Load(name, url, need, self._used(states), is_alone=is_alone)
                        load.reservation = self._others.reserve(need)
                        self._running.append(load)
                        return load
                self._changed.wait(self._others.pause_s)

    def _end(self, load: _Load, *, is_loaded: bool) -> None:
        self._trim()  # the buffers that the model was read into
        with self._changed, self._others.admission():
            self._running.remove(load)
            was_undisturbed = self._others.release(load.reservation)
            if is_loaded and load.is_alone and was_undisturbed:
                used = self._used(self._states(load.need))
                self._record(
                    load.url, {device: used[device] - load.before[device] for device in used.keys() & load.before}
                )
            self._changed.notify_all()

    def _disturb(self) -> None:
        for load in self._running:
            load.is_alone = False

    def _record(self, url: str, taken: Mapping[str, int]) -> None:
        self._taken[url] = taken
        self._taken.move_to_end(url)
        while len(self._taken) > _RECORDS_AT_MOST:
            self._taken.popitem(last=False)

    def _need(self, url: str, model: ModelFolder) -> dict[str, int]:
        """The estimate, or what the last load used if that was more."""
        need = {HOST: int(model.weight_bytes * HOST_FACTOR) + HOST_EXTRA}
        for gpu in self._gpus_of(model):
            need[_gpu(gpu)] = int(model.weight_bytes * GPU_FACTOR) + GPU_EXTRA
        last = self._taken.get(url, {})
        return {device: max(size, last.get(device, 0)) for device, size in need.items()}

    def _gpus_of(self, model: ModelFolder) -> set[int]:
        """The GPUs that get instances. The groups are not expanded: their counts are unchecked and may be huge."""
        config, directory = copy_of(model.config), ModelDirectory(model.path.name, model.path)
        fill_identity(config, directory.name, detection_files(directory))
        gpu_ids = self._gpu_ids(config)
        if not gpu_ids:
            return set()
        normalize(config, gpu_ids)
        groups = [g for g in config.instance_group if g.kind == ModelInstanceGroup.KIND_GPU and not g.passive]
        return {gpu for group in groups for gpu in group.gpus if gpu in gpu_ids}

    def _states(self, need: Mapping[str, int]) -> dict[str, MemoryState]:
        states = {HOST: self._host()}
        if len(need) > 1:
            states.update({_gpu(number): state for number, state in enumerate(self._gpus()) if _gpu(number) in need})
        return {device: state for device, state in states.items() if state is not None}

    def _used(self, states: Mapping[str, MemoryState]) -> dict[str, int]:
        """The bytes in use by device: the container's by the processes with the models, a GPU's by all processes."""
        used = {device: state.total - state.free for device, state in states.items() if device != HOST}
        return {HOST: self._resident(), **used}


def _refuse_without_memory(name: str, need: Mapping[str, int], states: Mapping[str, MemoryState]) -> None:
    """Raise OutOfMemory if a device has less free memory than the load needs there."""
    for device, size in need.items():
        state = states.get(device)
        if state is None or size <= state.free - reserve_of(state.total):
            continue
        reserve = reserve_of(state.total)
        never = size > state.total - reserve
        raise OutOfMemory(
            f"out of memory: model '{name}' needs about {_mib(size)} of {device} memory, of which "
            f"{_mib(state.free)} of {_mib(state.total)} are free ({_mib(reserve)} are kept for requests)",
            hint="use an instance type with more memory" if never else "unload another model and try again",
            model=name,
        )


def _fits_beside(need: Need, states: Mapping[str, MemoryState], others: Sequence[Need]) -> bool:
    """Whether the memory suffices even if the loads with the needs `others` use all that is reserved for them."""
    promised = {device: sum(other.get(device, 0) for other in others) for device in states}
    return all(
        need.get(device, 0) + promised[device] <= state.free - reserve_of(state.total)
        for device, state in states.items()
    )


def _limited_memory(limit: int | None, resident: Callable[[], int]) -> MemoryState | None:
    state = host_memory()
    if limit is None:
        return state
    own = MemoryState(limit, max(0, limit - resident()))
    return own if state is None or own.free < state.free else state


def _gpu_memory(visible: str | None) -> list[MemoryState | None]:
    return [None if m is None else MemoryState(m[0], m[0] - m[1]) for m in gpu_memory(visible)]


def _gpu(number: int) -> str:
    return f"gpu:{number}"


def _mib(size: int) -> str:
    return f"{size / _MIB:,.0f} MiB"


class Reservations:
    """What the other front ends load, where there are none; several share SharedReservations.

    All methods but `disturb` are called within `admission`; none waits longer than others hold that.
    """

    pause_s: float | None = None
    """After this time a load that found no space looks again; None: others change nothing."""

    @contextmanager
    def admission(self) -> Iterator[None]:
        """Inside, no other front end admits a load."""
        yield

    def needs(self) -> list[Need]:
        """What the running loads of the others may take."""
        return []

    def reserve(self, need: Need) -> Any:
        """Let the others know of a load. Returns what `release` takes."""

    def release(self, reservation: Any) -> bool:
        """End a reservation. Returns whether no other front end changed anything since it began."""
        return True

    def disturb(self) -> None:
        """Let the others know that memory was freed."""


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
