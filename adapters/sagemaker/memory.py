"""Whether a model still fits: what it is expected to need against what the container and the GPUs have left.

The platform answers 507 by unloading another model and trying again, but a container that the kernel kills loses all
of them; so a model is refused while there is still some memory left.
Source: docs/spec/sagemaker.md sections A5, B4 (Triton looks for words in error texts, after the fact) and C.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from adapters.sagemaker.model_folder import ModelFolder
from core.config.instance_groups import GpuIds
from core.config.normalize import fill_identity, normalize
from core.config.schema import ModelConfig, ModelInstanceGroup, copy_of
from core.errors import OutOfMemory
from core.observability.hardware.host_memory import MemoryRoom, host_room, resident_bytes, trim_heap
from core.observability.hardware.visible_gpus import gpu_memory
from core.repository.layout import ModelDirectory, detection_files

HOST = "container"
_MIB = 1 << 20
# What a model needs at most while it is loaded, for each byte of its files. ONNX Runtime 1.31 copies one matrix after
# another, so it is 1.1 for 16 matrices of 16 MiB and 2.0 for a single one of 256 MiB; 1.0 once it is loaded.
HOST_FACTOR = 1.5
HOST_EXTRA = 16 * _MIB
# ONNX Runtime's arena on a GPU grows by powers of two.
GPU_FACTOR = 2.0
GPU_EXTRA = 64 * _MIB
_RESERVE_PART = 20
_RESERVE_LEAST = 64 * _MIB
_RESERVE_MOST = 512 * _MIB
_RECORDS_AT_MOST = 10_000


GpuIdsOf = Callable[[ModelConfig], GpuIds]
"""The GPUs that the instances of a model may use."""


def _no_gpus(config: ModelConfig) -> GpuIds:
    return ()


def reserve_of(total: int) -> int:
    """The bytes that no model may take, of `total`: they are for requests and their tensors."""
    return min(max(total // _RESERVE_PART, _RESERVE_LEAST), _RESERVE_MOST)


@dataclass(slots=True, eq=False)
class _Load:
    """A load under way. Bytes by device: `need` is what is kept free for it, `before` what was taken when it began.

    `is_alone`: nothing else changed the memory since then, as far as the budget knows.
    """

    name: str
    url: str
    need: Mapping[str, int]
    before: Mapping[str, int]
    is_alone: bool


class MemoryBudget:
    """Lets models in as long as there is room. Native threads, any number; it blocks on files and on the driver."""

    def __init__(
        self,
        host: Callable[[], MemoryRoom | None] = host_room,
        gpus: Callable[[], Sequence[MemoryRoom | None]] = tuple,
        *,
        gpu_ids: GpuIdsOf = _no_gpus,
        resident: Callable[[], int] = resident_bytes,
        trim: Callable[[], None] = trim_heap,
    ) -> None:
        """`gpus` are read by GPU number, `gpu_ids` are those that a model may use; None is what nobody can tell, and
        that is not checked. `trim` gives freed memory back to the system.
        """
        self._host = host
        self._gpus = gpus
        self._gpu_ids = gpu_ids
        self._resident = resident
        self._trim = trim
        self._changed = threading.Condition()
        self._running: list[_Load] = []
        # What models took, by url and device, the latest at the end.
        self._taken: OrderedDict[str, Mapping[str, int]] = OrderedDict()

    @classmethod
    def of_machine(
        cls, *, gpu_ids: GpuIdsOf = _no_gpus, visible_gpus: str | None = None, limit: int | None = None
    ) -> MemoryBudget:
        """The budget of this container. `limit`: bytes that this process may take, where that is less."""
        return cls(partial(_limited_room, limit), partial(_gpu_rooms, visible_gpus), gpu_ids=gpu_ids)

    @contextmanager
    def room_for(self, name: str, url: str, model: ModelFolder) -> Iterator[None]:
        """Load `model` inside: there is room for it, and what it took is measured. Raises OutOfMemory before.

        Waits for other loads only where their estimates stand in the way, never where memory is short as it is.
        """
        load = self._admit(name, url, model)
        try:
            yield
        except BaseException:
            self._end(load, is_loaded=False)
            raise
        self._end(load, is_loaded=True)

    def give_back(self) -> None:
        """A model was unloaded: let the system have its memory, and let those look again who wait for some."""
        self._trim()
        with self._changed:
            self._disturb()
            self._changed.notify_all()

    def taken(self, url: str) -> Mapping[str, int]:
        """What the model of `url` took when it was loaded last, in bytes by device; empty where that is not known."""
        with self._changed:
            return self._taken.get(url, {})

    def _admit(self, name: str, url: str, model: ModelFolder) -> _Load:
        with self._changed:
            need = self._need(url, model)
            while True:
                rooms = self._rooms(need)
                _refuse_without_room(name, need, rooms)
                if _fits_beside(need, rooms, self._running):
                    break
                self._changed.wait()
            self._disturb()
            load = _Load(name, url, need, self._used(rooms), is_alone=not self._running)
            self._running.append(load)
            return load

    def _end(self, load: _Load, *, is_loaded: bool) -> None:
        self._trim()  # what reading the model left behind
        with self._changed:
            self._running.remove(load)
            if is_loaded and load.is_alone:
                used = self._used(self._rooms(load.need))
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
        """The estimate, or what it took last time if that was more."""
        need = {HOST: int(model.weight_bytes * HOST_FACTOR) + HOST_EXTRA}
        for gpu in self._gpus_of(model):
            need[_gpu(gpu)] = int(model.weight_bytes * GPU_FACTOR) + GPU_EXTRA
        last = self._taken.get(url, {})
        return {device: max(size, last.get(device, 0)) for device, size in need.items()}

    def _gpus_of(self, model: ModelFolder) -> set[int]:
        """The GPUs that get instances; the groups are not expanded, because their counts are whatever was written."""
        config, directory = copy_of(model.config), ModelDirectory(model.path.name, model.path)
        fill_identity(config, directory.name, detection_files(directory))
        gpu_ids = self._gpu_ids(config)
        if not gpu_ids:
            return set()
        normalize(config, gpu_ids)
        groups = [g for g in config.instance_group if g.kind == ModelInstanceGroup.KIND_GPU and not g.passive]
        return {gpu for group in groups for gpu in group.gpus if gpu in gpu_ids}

    def _rooms(self, need: Mapping[str, int]) -> dict[str, MemoryRoom]:
        rooms = {HOST: self._host()}
        if len(need) > 1:
            rooms.update({_gpu(number): room for number, room in enumerate(self._gpus()) if _gpu(number) in need})
        return {device: room for device, room in rooms.items() if room is not None}

    def _used(self, rooms: Mapping[str, MemoryRoom]) -> dict[str, int]:
        """Bytes taken by device: of the container by this process, of a GPU by everybody."""
        used = {device: room.total - room.free for device, room in rooms.items() if device != HOST}
        return {HOST: self._resident(), **used}


def _refuse_without_room(name: str, need: Mapping[str, int], rooms: Mapping[str, MemoryRoom]) -> None:
    """Raise OutOfMemory if a device has not got as much free as is needed there."""
    for device, size in need.items():
        room = rooms.get(device)
        if room is None or size <= room.free - reserve_of(room.total):
            continue
        reserve = reserve_of(room.total)
        never = size > room.total - reserve
        raise OutOfMemory(
            f"out of memory: model '{name}' needs about {_mib(size)} of {device} memory, of which {_mib(room.free)} of "
            f"{_mib(room.total)} are free ({_mib(reserve)} are kept for requests)",
            hint="use an instance type with more memory" if never else "unload another model and try again",
            model=name,
        )


def _fits_beside(need: Mapping[str, int], rooms: Mapping[str, MemoryRoom], others: Iterable[_Load]) -> bool:
    """Whether there is room even if all `others` still take the whole of what they need."""
    promised = {device: sum(load.need.get(device, 0) for load in others) for device in rooms}
    return all(
        need.get(device, 0) + promised[device] <= room.free - reserve_of(room.total) for device, room in rooms.items()
    )


def _limited_room(limit: int | None) -> MemoryRoom | None:
    room = host_room()
    if limit is None:
        return room
    own = MemoryRoom(limit, max(0, limit - resident_bytes()))
    return own if room is None or own.free < room.free else room


def _gpu_rooms(visible: str | None) -> list[MemoryRoom | None]:
    return [None if m is None else MemoryRoom(m[0], m[0] - m[1]) for m in gpu_memory(visible)]


def _gpu(number: int) -> str:
    return f"gpu:{number}"


def _mib(size: int) -> str:
    return f"{size / _MIB:,.0f} MiB"
