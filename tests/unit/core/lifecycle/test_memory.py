"""The ledger of memory: with an invented GPU, and with ONNX Runtime's arena on the CPU in the place of one on a GPU."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit import onnx_models
from tests.unit.core.lifecycle.lifecycle_bench import CONFIG as BASIC
from tests.unit.core.lifecycle.lifecycle_bench import LIMIT_S, FakeBackend, living, write
from trident.app.process.environment import keep_freed_memory
from trident.core.backends.registry import BackendRegistry
from trident.core.config.schema import ModelConfig
from trident.core.errors import OutOfMemory
from trident.core.frontend.admin import model_statistics_json
from trident.core.http.admin import repository_index_json
from trident.core.lifecycle.idle_memory import IdleMemory
from trident.core.lifecycle.memory import CPU, Holding, MemoryLedger, MemoryReading, ModelBudget, Shortage, reserve_of
from trident.core.lifecycle.options import AUTO, UNLIMITED, EngineOptions, MemoryShare
from trident.core.lifecycle.reader import ModelReader
from trident.core.observability.hardware import resident_bytes, trim_heap
from trident.core.observability.metrics.families import metric_families
from trident.core.observability.statistics import MetricsOptions
from trident.core.repository.config import read_config
from trident.core.repository.repository import ModelDirectory

MIB = 1 << 20
GIB = 1 << 30
GPU = "gpu:0"


class Machine:
    """A GPU of 8 GiB, of which 512 MiB are kept for requests."""

    def __init__(self, per_model: int = AUTO) -> None:
        self.used = 0
        self.ledger = MemoryLedger(self._read, {GPU: "GPU-a"}, per_model=per_model)

    def load(self, name: str, need: int, takes: int = 0) -> Holding:
        with self.ledger.load(name, name, {GPU: need}) as holding:
            self.used += takes
        self.ledger.keep(holding)
        return holding

    def _read(self, devices: Collection[str]) -> dict[str, MemoryReading]:
        return {GPU: MemoryReading(8 * GIB, 8 * GIB - self.used, self.used)} if GPU in devices else {}


def test_a_load_that_cannot_fit_is_refused_before_it_begins() -> None:
    machine = Machine()
    machine.load("a", 2 * GIB, takes=4 * GIB)
    with pytest.raises(
        OutOfMemory,
        match=r"^out of memory: model 'b' needs about 3,585 MiB of gpu:0 memory, of which 4,096 MiB of 8,192 MiB are "
        r"free \(410 MiB are kept for requests, 512 MiB for what other models may still take\)$",
    ) as caught:
        machine.load("b", 3585 * MIB)
    assert caught.value.hint == "unload another model and try again"
    machine.load("b", 3 * GIB)


def test_reserved_memory_is_free_after_the_unload() -> None:
    machine = Machine(per_model=6 * GIB)
    first = machine.load("a", GIB, takes=GIB)
    with pytest.raises(OutOfMemory, match="5,120 MiB for what other models may still take"):
        machine.load("b", 2 * GIB)
    machine.load("a", 2 * GIB)  # its own new version
    machine.used = 0
    first.release()
    machine.ledger._held[0].release()
    machine.load("b", 2 * GIB)


def test_memory_is_measured_without_limits() -> None:
    machine = Machine(per_model=UNLIMITED)
    assert machine.load("a", 100 * GIB, takes=GIB).bytes == {GPU: 100 * GIB}
    assert machine.ledger.limit("b", GPU) == 0


def test_the_measured_size_counts_at_the_next_load() -> None:
    machine = Machine()
    machine.load("a", GIB, takes=5 * GIB).release()
    with pytest.raises(OutOfMemory, match="needs about 5,120 MiB"):
        machine.load("a", GIB)


def test_concurrent_loads_share_the_measured_memory_by_need() -> None:
    machine = Machine()
    with machine.ledger.load("a", "a", {GPU: 3 * GIB}) as first:
        second = machine.load("b", GIB, takes=2 * GIB)
        machine.used += 4 * GIB
        assert second.taken == {}
    assert (first.taken[GPU] // MIB, second.taken[GPU] // MIB) == (4607, 1536)


def test_model_limit_is_the_memory_not_reserved_for_others() -> None:
    machine = Machine()
    machine.load("a", GIB, takes=4 * GIB)
    assert machine.ledger.limit("b", GPU) == 4 * GIB - reserve_of(8 * GIB) - GIB // 2
    assert machine.ledger.limit("a", GPU) == 8 * GIB - reserve_of(8 * GIB)  # in the place of its old version
    assert machine.ledger.limit("b", "cpu") == 0
    assert Machine(per_model=GIB).ledger.limit("b", GPU) == GIB


def test_idle_models_free_memory_before_a_load_is_refused() -> None:
    machine = Machine()
    holding = machine.load("a", GIB, takes=6 * GIB)

    def shrink() -> None:
        machine.used = min(machine.used, 2 * GIB)

    def reclaim() -> None:
        machine.ledger.shrink(holding, shrink)

    machine.ledger.reclaim = reclaim
    machine.load("b", 3 * GIB)
    assert holding.bytes == {GPU: 2 * GIB}
    with pytest.raises(OutOfMemory):
        machine.load("c", 6 * GIB)


def test_memory_of_a_load_in_progress_is_waited_for() -> None:
    machine = Machine()
    order: list[str] = []
    looked = threading.Event()

    def second() -> None:
        looked.set()
        with machine.ledger.load("b", "b", {GPU: 4 * GIB}):
            order.append("the second begins")

    with ThreadPoolExecutor() as pool:
        with machine.ledger.load("a", "a", {GPU: 5 * GIB}):
            waiting = pool.submit(second)
            assert looked.wait(LIMIT_S)
            order.append("the first ends")
        waiting.result(LIMIT_S)
    assert order == ["the first ends", "the second begins"]


class Heap:
    """A process with a budget of 1,000 MiB, whose freed memory stays resident until a trim, and serves loads before."""

    def __init__(self) -> None:
        self.used = self.free = self.trims = 0
        share = MemoryShare(bytes=1000 * MIB)
        self.budget = ModelBudget(share, resident=lambda: self.used + self.free, host=lambda: None)
        self.ledger = MemoryLedger(lambda devices: {}, {}, trim=self._trim, budget=self.budget)
        self.ledger.make_room = self._make_room
        self.victims: list[Holding] = []

    def load(self, name: str, size: int) -> Holding:
        with self.ledger.load(name, name, {CPU: 2 * size}, {CPU: size}) as holding:
            self.free = max(self.free, 2 * size) - size
            self.used += size
        self.ledger.keep(holding)
        return holding

    def release(self, holding: Holding) -> None:
        self.used -= holding.least[CPU]
        self.free += holding.least[CPU]
        holding.release()

    def _make_room(self, model: str, shortage: Shortage) -> bool:
        if self.victims:
            self.release(self.victims.pop())
        return bool(self.victims)

    def _trim(self) -> None:
        self.free = 0
        self.trims += 1


def test_load_reuses_memory_freed_to_the_heap() -> None:
    heap = Heap()
    for name, size in (("large", 265), ("larger", 266)):
        heap.load(name, size * MIB)
    models = [heap.load(f"m{number}", 20 * MIB) for number in range(22)]
    for each in models[:2]:
        heap.release(each)
    before = heap.trims
    for name in ("m0", "m1"):
        assert heap.load(name, 20 * MIB).bytes == {CPU: 20 * MIB}
    heap.victims = models[2:6]
    heap.load("m5", 20 * MIB)
    assert (heap.trims, len(heap.victims)) == (before, 3)


def test_heap_is_trimmed_when_no_load_needs_its_free_memory() -> None:
    heap = Heap()
    first, second = (heap.load(name, 20 * MIB) for name in ("first", "second"))
    heap.release(second)
    second = heap.load("second", 20 * MIB)
    assert heap.free == 20 * MIB
    heap.release(second)
    heap.used += MIB  # modules that were imported, for example
    heap.release(first)
    assert (heap.free, heap.budget.read().used) == (0, 0)


def test_grown_processes_count_for_their_model() -> None:
    heap = Heap()
    heap.load("first", MIB)
    second = heap.load("second", MIB)
    second.processes = lambda: [2 * MIB, 3 * MIB]
    assert second.bytes == {CPU: 5 * MIB}
    assert heap.ledger.holders(CPU) == "; held by second 5 MiB, first 1 MiB"


def test_heap_retains_a_small_part_of_the_budget() -> None:
    heap = Heap()
    for _ in range(3):
        kept = heap.load("first", MIB)
        heap.release(heap.load("large", 200 * MIB))
        heap.release(kept)
    heap.load("first", MIB)
    heap.load("large", 200 * MIB)
    assert heap.free <= 50 * MIB


class OnGpus(FakeBackend):
    supports_gpus = True

    def weight_bytes(self, path: Path, config: ModelConfig) -> int:
        return 400 * MIB


@pytest.mark.parametrize(
    ("groups", "devices"),
    [
        ("", {GPU, "gpu:1"}),  # without instance groups there is an instance on each GPU
        ("instance_group { kind: KIND_GPU gpus: [ 1 ] }", {"gpu:1"}),
        ("instance_group { kind: KIND_GPU gpus: [ 0 ] count: 2000000000 }", {GPU}),
        ("instance_group { kind: KIND_GPU gpus: [ 1 ] passive: true }", set()),
        ("instance_group { kind: KIND_GPU gpus: [ 7 ] }", set()),  # there is none
        ("instance_group { kind: KIND_CPU }", set()),
    ],
)
def test_a_model_needs_its_weights_on_each_gpu_that_it_has_instances_on(
    groups: str, devices: set[str], tmp_path: Path
) -> None:
    folder = write(tmp_path, "m", 1, config=BASIC + groups)
    registry = BackendRegistry({}, gpu_ids=(0, 1), makers={"fake": lambda settings: OnGpus()})
    directory = ModelDirectory("m", folder)
    need = ModelReader(EngineOptions(repositories=()), registry).least_need
    assert need(directory, read_config(directory), 1, {GPU, "gpu:1"}) == dict.fromkeys(devices, 400 * MIB)


# --- the arena on the CPU in the place of one on a GPU

CONFIG = """
backend: "onnxruntime"
max_batch_size: 4096
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1024 ] }
input { name: "INPUT1" data_type: TYPE_FP32 dims: [ 1024 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1024 ] }
output { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 1024 ] }
"""
WARM = (
    CONFIG
    + """
model_warmup { name: "large" batch_size: 4096
  inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: [ 1024 ] zero_data: true } }
  inputs { key: "INPUT1" value { data_type: TYPE_FP32 dims: [ 1024 ] zero_data: true } } }
"""
)
OUTPUTS = 32 * MIB
"""Bytes of the arena that the outputs of the warm-up take."""


class Arena:
    """A device with the memory of this process."""

    def __init__(self) -> None:
        # As in the server's processes. Otherwise glibc takes large blocks from its heap once the process has freed such
        # a block, and does not return all of them.
        keep_freed_memory()
        self.total = 64 * GIB
        self.ledger = MemoryLedger(self._read, {"cpu": ""}, trim=trim_heap)

    def leave(self, size: int) -> None:
        """Let `size` bytes be free that are not kept for requests."""
        self.total = resident_bytes() + size + 64 * MIB

    def _read(self, devices: Collection[str]) -> dict[str, MemoryReading]:
        used = resident_bytes()
        return {"cpu": MemoryReading(self.total, self.total - used, used)}


def test_memory_of_a_model_is_measured_shown_and_freed(tmp_path: Path) -> None:
    onnx_models.write_version(onnx_models.add_sub("FP32", 1024), tmp_path, "m", WARM)
    ledger = Arena().ledger
    # What the process has freed, and gives back meanwhile, does not hide what the load takes.
    freed = [bytes(100_000) for _ in range(2_000)]
    del freed[:-1]
    with living(tmp_path, memory=ledger) as bench:
        version = bench.version("m")
        taken = version.device_bytes["cpu"]
        assert taken > OUTPUTS * 0.9
        shown = [{"type": "CPU", "id": 0, "byte_size": taken}]
        [entry] = repository_index_json(bench.engine.repository_index(ready_only=True))
        assert entry["memory_usage"] == shown
        [statistics] = model_statistics_json(bench.engine.model_statistics("m"))["model_stats"]
        assert statistics["memory_usage"] == shown
        families = {family.name: family for family in metric_families(bench.engine.metrics(), MetricsOptions())}
        [sample] = families["trident_model_memory_bytes"].samples
        assert sample.labels == {"model": "m", "version": "1", "device": "cpu", "gpu_uuid": ""}
        assert sample.value == taken

        idle = IdleMemory(bench.lifecycle._serving, ledger, after_s=60)
        before, now_s = resident_bytes(), time.monotonic()
        for seconds in (0, 59, 61):
            idle.look(now_s + seconds)
            # How much of it the heap can return depends on what else lies there.
            assert (before - resident_bytes() > OUTPUTS * 0.5) == (seconds == 61)
        assert version.device_bytes["cpu"] < taken - OUTPUTS * 0.5


def test_load_uses_memory_of_idle_models_or_is_refused(tmp_path: Path) -> None:
    onnx_models.write_version(onnx_models.add_sub("FP32", 1024), tmp_path, "m", WARM)
    for name, size in (("fits", OUTPUTS), ("large", GIB)):
        weights = onnx_models.write_version(onnx_models.add_sub("FP32", 1024), tmp_path, name, CONFIG) / "weights.bin"
        weights.touch()
        os.truncate(weights, size)  # it takes no space on the disk
    arena = Arena()
    with living(tmp_path, memory=arena.ledger, control_mode="explicit", load_models=("m",)) as bench:
        holding = bench.version("m").memory
        assert holding is not None
        arena.leave(holding.taken["cpu"] // 8 + OUTPUTS // 2)
        bench.load("fits")
        assert holding.returned["cpu"] > OUTPUTS * 0.9
        with pytest.raises(OutOfMemory, match=r"model 'large' needs about 1,02\d MiB of cpu memory"):
            bench.load("large")
        assert not bench.version("m").has_failed
