"""The ledger of memory: the memory of each model by device, and the admission of loads.

No framework tells how much it takes, so a load is measured by what its devices have in use before and after it. It is
refused before it begins if what it needs at least is not free. The same ledger admits loads onto GPUs, by what NVML
tells, and onto the CPU, by a budget for the models of a process.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from trident.core.errors import OutOfMemory
from trident.core.lifecycle.options import AUTO, UNLIMITED, MemoryShare
from trident.core.observability.hardware import MemoryState, gpu_memory, host_memory, resident_bytes
from trident.core.observability.statistics import DeviceMemoryMetrics

_MIB = 1 << 20
_RESERVE_PART = 20
_RESERVE_LEAST = 64 * _MIB
_RESERVE_MOST = 512 * _MIB
# Part of the memory of a model's load and warm-up that is reserved in addition for its requests.
_HEADROOM_PART = 8
_RECORDS_AT_MOST = 10_000
_HOLDERS_SHOWN = 5
# How long a load waits for models that are still in use, from when one has given its memory back.
_PATIENCE_S = 5.0
_LOOK_EVERY_S = 0.1
# Part of a budget that the heap may retain as free memory.
_LOOSE_PART = 25
_LOOSE_MOST = 128 * _MIB
# Bytes of a container that does not tell its size.
_UNKNOWN = 1 << 62

Need: TypeAlias = Mapping[str, int]
"""Bytes by device."""

CPU = "cpu"
"""The device of models that run on no GPU, in a server that has a budget for them."""


CPU_FACTOR = 2.0
"""The peak memory of a load for each byte of the model's files. ONNX Runtime 1.31 copies one matrix after another: 2.0
was measured for one matrix of 256 MiB, and 1.0 after the load."""


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """In bytes. `used` is what loads are measured by: of a GPU all that is in use, of a container its models' part.

    `is_budget`: all of it is for models, so nothing is kept of it.
    """

    total: int
    free: int
    used: int
    is_budget: bool = False

    @property
    def reserve(self) -> int:
        return 0 if self.is_budget else reserve_of(self.total)


@dataclass(frozen=True, slots=True)
class Shortage:
    """The memory that a load lacks, by device, in bytes. `free` has to become free before it begins; `left` is what it
    would leave to other models."""

    free: Need
    left: Need


# The devices among those that are named, as they are now; without those that cannot be read.
ReadDevices = Callable[[Collection[str]], Mapping[str, MemoryReading]]


def read_gpus(visible: str | None, part: float, devices: Collection[str]) -> dict[str, MemoryReading]:
    """The GPUs in `visible`, the value of CUDA_VISIBLE_DEVICES, of each of which this `part` is used. Blocks on the
    driver."""
    named = {f"gpu:{number}": memory for number, memory in enumerate(gpu_memory(visible)) if memory is not None}
    found = {}
    for name, (total, used) in named.items():
        if name in devices:
            found[name] = MemoryReading(int(total * part), int(total * part) - used, used)
    return found


def read_devices(gpus: ReadDevices, budget: ModelBudget, devices: Collection[str]) -> dict[str, MemoryReading]:
    found = dict(gpus(devices)) if any(device != CPU for device in devices) else {}
    return {**found, CPU: budget.read()} if CPU in devices else found


class ModelBudget:
    """The part of the container's memory for the models of this process, one of `engines`.

    What the process takes without any model does not count: `settle` measures it. `processes` are those that models
    have besides it.

    A model that goes leaves memory to the heap, and the next one takes it from there: to return it to the system and to
    get it again takes as long as a load. So of what is resident beyond `in_use` a small part counts as free. `in_use`
    is what was resident after the last trim of the heap, and what loads and unloads have changed since.
    """

    def __init__(
        self,
        share: MemoryShare,
        *,
        engines: int = 1,
        resident: Callable[[], int] = resident_bytes,
        host: Callable[[], MemoryState | None] = host_memory,
    ) -> None:
        self.processes: Callable[[], Iterable[int]] = tuple
        self._share = share
        self._engines = engines
        self._resident = resident
        self._host = host
        self._total = 0
        self._without = 0
        self.in_use = 0
        self.settle()

    def settle(self) -> None:
        self._without = self._taken()
        self.in_use = 0
        if self._share.bytes:
            self._total = self._share.bytes
            return
        host = self._host()
        if host is None:
            self._total = _UNKNOWN
        elif self._share.part:
            self._total = int(host.total * self._share.part)
        else:
            reserve = reserve_of(host.total)
            own_part = (host.total - reserve) // self._engines - self._without
            self._total = max(0, min(host.free - reserve, own_part))

    def note_trim(self) -> None:
        self.in_use = self._resident_of_models()

    @property
    def is_loose(self) -> bool:
        """True if the heap may have more free than may stay there."""
        return self._resident_of_models() - self.in_use > self.loose_most

    @property
    def is_over(self) -> bool:
        """True if more is resident than the budget allows and half of what may be loose."""
        return self._resident_of_models() > self._total + self.loose_most // 2

    @property
    def loose_most(self) -> int:
        return min(self._total // _LOOSE_PART, _LOOSE_MOST)

    def read(self) -> MemoryReading:
        resident = self._resident_of_models()
        used = resident - min(max(0, resident - self.in_use), self.loose_most)
        free = self._total - used
        host = None if self._share.bytes or self._share.part else self._host()
        if host is not None:  # others take memory, too
            free = min(free, host.free - reserve_of(host.total))
        return MemoryReading(self._total, free, used, is_budget=True)

    def _resident_of_models(self) -> int:
        return max(0, self._taken() - self._without)

    def _taken(self) -> int:
        return self._resident() + sum(self.processes())


def reserve_of(total: int) -> int:
    """Bytes of `total` that are reserved for requests and their tensors; no model may use them."""
    return min(max(total // _RESERVE_PART, _RESERVE_LEAST), _RESERVE_MOST)


class Holding:
    """The memory of one model, in bytes by device. `need` is what its load takes, `least` what it holds at least.

    `known` is what an earlier load of it took, if this one need not be measured.
    """

    def __init__(self, ledger: MemoryLedger, name: str, need: Need, least: Need, known: Need | None) -> None:
        self.name = name
        self.known = known
        self.need = dict(need)
        self.least = dict(least)
        self.taken: dict[str, int] = {}
        """At its load and warm-up; empty if that could not be measured."""
        self.returned: dict[str, int] = {}
        """Bytes given back since, because it was idle."""
        self.processes: Callable[[], Iterable[int]] = tuple
        """Returns the bytes that each process of the model uses now."""
        self._ledger = ledger

    @property
    def bytes(self) -> dict[str, int]:
        """Known bytes by device; requests may have added to them, which is known of the model's processes."""
        found = {
            device: max(self.least.get(device, 0), taken - self.returned.get(device, 0))
            for device, taken in self.taken.items()
        }
        if CPU in found:
            found[CPU] = max(found[CPU], sum(self.processes()))
        return found

    def metrics(self) -> tuple[DeviceMemoryMetrics, ...]:
        uuids = self._ledger.devices
        return tuple(
            DeviceMemoryMetrics(device=device, gpu_uuid=uuids.get(device, ""), bytes=size)
            for device, size in self.bytes.items()
        )

    def add(self, other: Holding) -> None:
        self.need.update(other.need)
        self.least.update(other.least)
        self.taken.update(other.taken)

    def release(self) -> None:
        self._ledger.give_back(self)


@dataclass(slots=True, eq=False)
class _Loads:
    """Loads that overlap, which can only be measured together. `before` was in use when the first one began.

    `is_disturbed`: the memory was changed by something else meanwhile. `needs_trim`: what the heap has free would be
    counted.
    """

    before: dict[str, int]
    running: list[Holding] = field(default_factory=list)
    loaded: list[tuple[Hashable, Holding]] = field(default_factory=list)
    is_disturbed: bool = False
    needs_trim: bool = False


class MemoryLedger:
    """Admits and measures loads. Any native thread; it blocks on files and on the GPU driver.

    `devices` are those that it knows, with the UUIDs of GPUs. `reclaim` frees what idle models do not need, before a
    load is refused. `make_room` lets go of models for the load of one, and returns whether that is worth a wait.
    """

    def __init__(
        self,
        read: ReadDevices,
        devices: Mapping[str, str],
        *,
        per_model: int = AUTO,
        hint: str = "unload another model and try again",
        hint_never: str = "use an instance type with more memory",
        trim: Callable[[], None] = lambda: None,
        budget: ModelBudget | None = None,
    ) -> None:
        """`per_model` is AUTO, UNLIMITED or the bytes that each model may take on a device. `trim` returns freed memory
        to the system. `hint` is for a load that is refused, `hint_never` if it were so without other models, too.
        `budget` is what models on the CPU may take; None: they are not counted.
        """
        self.devices = devices if budget is None else {CPU: "", **devices}
        self.budget = budget
        self.reclaim: Callable[[], None] = lambda: None
        self.make_room: Callable[[str, Shortage], bool] = lambda model, shortage: False
        self._read = read if budget is None else partial(read_devices, read, budget)
        self._per_model = per_model
        self._hint = hint
        self._hint_never = hint_never
        self._trim = trim
        self._changed = threading.Condition()
        self._loads: _Loads | None = None
        self._held: list[Holding] = []
        # Counts the ends of loads, and models that gave their memory back.
        self._changes = 0
        # The loads that are not admitted yet.
        self._waiting = 0
        # The bytes that models took, by what they were loaded from; the latest load is at the end.
        self._taken: OrderedDict[Hashable, Need] = OrderedDict()
        # The measurement of the first load includes its framework.
        self._first: Hashable = None

    @contextmanager
    def load(self, name: str, source: Hashable, need: Need, least: Need | None = None) -> Iterator[Holding]:
        """Reserve memory for a model while the caller loads it inside the context, and measure what the load took.

        `need` is an estimate, or 0 where there is none; what the last load from the same `source` took counts if that
        was more. `least` is what the model holds afterwards at least, by default its need. Raises OutOfMemory on entry
        if the memory is too short already. Waits only for other loads whose reservations leave too little, and for
        models that `make_room` lets go.
        """
        with self._changed:
            known = self._known(source, need)
            self._waiting += 1
        try:
            if known is None and (self.budget is None or self.budget.is_loose):
                self._trim_heap()  # what is free would otherwise be given back meanwhile, and hide what the load takes
            holding = self._admit(name, source, need, need if least is None else least, known)
        finally:
            with self._changed:
                self._waiting -= 1
        try:
            yield holding
        except BaseException:
            self._end(holding)
            raise
        self._end(holding, source)

    def keep(self, holding: Holding) -> None:
        """Reserve memory for the requests of a loaded model, until its `release`."""
        with self._changed:
            self._held.append(holding)

    def give_back(self, holding: Holding) -> None:
        """Return the memory of an unloaded model to the system, or to the loads that wait for it."""
        with self._changed:
            is_awaited = bool(self._waiting or self._loads)
        if self.budget is None or not is_awaited:
            self._trim_heap()
        else:
            self.budget.in_use -= holding.taken.get(CPU, 0)
        with self._changed:
            if holding in self._held:
                self._held.remove(holding)
                if self.budget is not None and not (self._held or is_awaited):
                    self.budget.settle()  # the remaining memory belongs to no model
            self._changes += 1
            if self._loads is not None:
                self._loads.is_disturbed = True
            self._changed.notify_all()

    def shrink(self, holding: Holding, shrink: Callable[[], None]) -> int:
        """Call `shrink`, which returns memory of an idle model, and note how much. Returns the bytes."""
        with self._changed:
            before = self._used(holding.taken)
            shrink()
            self._trim_heap()
            after = self._used(holding.taken)
            returned = {device: max(0, before[device] - used) for device, used in after.items() if device in before}
            for device, size in returned.items():
                holding.returned[device] = holding.returned.get(device, 0) + size
                if self._loads is not None and device in self._loads.before:
                    self._loads.before[device] -= size
        return sum(returned.values())

    def limit(self, name: str, device: str) -> int:
        """The bytes that the model `name`, which is being loaded, may take on `device`; 0: there is no limit."""
        if self.budget is not None and device == CPU:
            return 0
        if self._per_model != AUTO or device not in self.devices:
            return max(0, self._per_model) if device in self.devices else 0
        with self._changed:
            state = self._read([device]).get(device)
            if state is None:
                return 0
            replaced = sum(holding.bytes.get(device, 0) for holding in self._held if holding.name == name)
            needs = [each.need for each in self._running if each.name != name]
            kept = state.reserve + self._growth(name, device, state) + _sum(device, needs)
            return max(0, state.free + replaced - kept)

    def excess(self) -> int:
        """The bytes that models take beyond the budget, when the heap has given back what it can."""
        if self.budget is None:
            return 0
        state = self.budget.read()
        if state.used > state.total:
            self._trim_heap()
            state = self.budget.read()
        return max(0, state.used - state.total)

    @property
    def _running(self) -> Sequence[Holding]:
        return self._loads.running if self._loads is not None else ()

    def _trim_heap(self) -> None:
        self._trim()
        with self._changed:
            if self.budget is not None:
                self.budget.note_trim()
            if self._loads is not None:
                self._loads.needs_trim = True

    def _known(self, source: Hashable, estimate: Need) -> Need | None:
        """Return what the last load from `source` took of the budget, or None if that measurement is not reliable."""
        last = self._taken.get(source)
        if self.budget is None or last is None or source == self._first or not last.keys() == estimate.keys() == {CPU}:
            return None
        return last if last[CPU] <= max(estimate[CPU], self.budget.loose_most) else None

    def _admit(self, name: str, source: Hashable, estimate: Need, least: Need, known: Need | None) -> Holding:
        with self._changed:
            last = self._taken.get(source, {})
        need = {device: max(size, last.get(device, 0)) for device, size in estimate.items()}
        has_reclaimed = False
        patience = time.monotonic() + _PATIENCE_S
        while True:
            with self._changed:
                if self.budget is not None and not self._held and self._loads is None:
                    self._trim_heap()
                    self.budget.settle()
                states = self._read(need)
                refusal = self._refusal(name, need, states)
                if refusal is None and self._fits_beside(name, need, states):
                    holding = Holding(self, name, need, least, known)
                    if self._loads is None:
                        self._loads = _Loads({})
                    # A device counts from when the first load needs it.
                    self._loads.before = {
                        **{device: state.used for device, state in states.items()},
                        **self._loads.before,
                    }
                    self._loads.running.append(holding)
                    if holding.known is None:
                        self._loads.needs_trim = True
                    return holding
                running = [holding.need for holding in self._running]
                free: dict[str, int] = {}
                left: dict[str, int] = {}
                for device, state in states.items():
                    wanted = need[device] + state.reserve + self._growth(name, device, state)
                    free[device] = wanted + _sum(device, running) - state.free
                    left[device] = state.total - wanted
                shortage = Shortage(free, left)
                changes = self._changes
            if refusal is not None and not has_reclaimed:
                self.reclaim()
                has_reclaimed = True
                continue
            if refusal is not None and self.budget is not None and self.budget.is_loose:
                self._trim_heap()
                continue
            # Without the lock: a model that goes gives its memory back here.
            is_worth_a_wait = self.make_room(name, shortage) and time.monotonic() < patience
            if refusal is not None and not is_worth_a_wait:
                raise refusal
            with self._changed:
                if changes != self._changes:
                    patience = time.monotonic() + _PATIENCE_S
                else:
                    self._changed.wait(_LOOK_EVERY_S if is_worth_a_wait else None)

    def _end(self, holding: Holding, source: Hashable = None) -> None:
        """`source` is None for a load that failed."""
        if self.budget is None:
            self._trim()  # the buffers that the model was read into
        with self._changed:
            loads = self._loads
            assert loads is not None
            loads.running.remove(holding)
            if source is not None:
                loads.loaded.append((source, holding))
            else:
                loads.needs_trim = True
            if not loads.running:
                self._measure(loads)
                self._loads = None
            self._changes += 1
            self._changed.notify_all()

    def _measure(self, loads: _Loads) -> None:
        """Divide what was taken among the loads by their needs, those aside that are known."""
        known = 0
        for _, holding in loads.loaded:
            if holding.known is not None:
                holding.taken = dict(holding.known)
                known += holding.taken[CPU]
        if self.budget is not None:
            self.budget.in_use += known
            if loads.needs_trim or self.budget.is_loose or self.budget.is_over:
                self._trim_heap()
        loaded = [(source, holding) for source, holding in loads.loaded if holding.known is None]
        if loads.is_disturbed:
            for _, holding in loaded:
                if self.budget is not None and CPU in holding.need:
                    holding.taken[CPU] = holding.least[CPU]
            return
        for device, used in self._used(loads.before if loaded else ()).items():
            parts = [(*load, load[1].need[device] + 1) for load in loaded if device in load[1].need]
            taken = max(0, used - loads.before[device] - (known if device == CPU else 0))
            for source, holding, part in parts:
                holding.taken[device] = taken * part // sum(p for _, _, p in parts)
                if self._first is None:
                    self._first = source
                self._taken[source] = dict(holding.taken)
                self._taken.move_to_end(source)
                while len(self._taken) > _RECORDS_AT_MOST:
                    self._taken.popitem(last=False)

    def _used(self, devices: Collection[str]) -> dict[str, int]:
        return {device: state.used for device, state in self._read(devices).items()} if devices else {}

    def _growth(self, name: str, device: str, state: MemoryReading) -> int:
        """Bytes that loaded models may still take on `device`, without those that the model `name` is going to
        replace. Those of a budget are measured, whatever takes them."""
        if state.is_budget:
            return 0
        taken = [h.taken[device] for h in self._held if h.name != name and device in h.taken]
        if self._per_model == AUTO:
            return sum(size // _HEADROOM_PART for size in taken)
        return sum(max(0, self._per_model - size) for size in taken)

    def _refusal(self, name: str, need: Need, states: Mapping[str, MemoryReading]) -> OutOfMemory | None:
        for device, size in need.items():
            state = states.get(device)
            if state is None or (self._per_model == UNLIMITED and not state.is_budget):
                continue
            reserve, growth = state.reserve, self._growth(name, device, state)
            if not size or size <= state.free - reserve - growth:
                continue
            promised = f", {_mib(growth)} for what other models may still take" if growth else ""
            told = f" ({_mib(reserve)} are kept for requests{promised})" if reserve else self.holders(device)
            return OutOfMemory(
                f"out of memory: model '{name}' needs about {_mib(size)} of {device} memory, of which "
                f"{_mib(max(0, state.free))} of {_mib(state.total)} are free{told}",
                hint=self._hint_never if size > state.total - reserve else self._hint,
                model=name,
            )
        return None

    def holders(self, device: str) -> str:
        with self._changed:
            held = sorted(((each.bytes.get(device, 0), each.name) for each in self._held), reverse=True)
        shown = [f"{name} {_mib(size)}" for size, name in held[:_HOLDERS_SHOWN] if size]
        more = f" and {len(held) - len(shown)} more" if len(held) > len(shown) else ""
        return f"; held by {', '.join(shown)}{more}" if shown else ""

    def _fits_beside(self, name: str, need: Need, states: Mapping[str, MemoryReading]) -> bool:
        """Return whether the memory suffices even if the other loads take all that is reserved for them."""
        needs = [holding.need for holding in self._running]
        return all(
            not need[device]
            or (self._per_model == UNLIMITED and not state.is_budget)
            or need[device] + _sum(device, needs) <= state.free - state.reserve - self._growth(name, device, state)
            for device, state in states.items()
        )


def _sum(device: str, needs: Sequence[Need]) -> int:
    return sum(need.get(device, 0) for need in needs)


def _mib(size: int) -> str:
    return f"{size / _MIB:,.0f} MiB"
