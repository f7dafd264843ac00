"""The memory budget, with invented figures, and once with the figures of this machine."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from google.protobuf import text_format

from tests.unit.core.lifecycle.lifecycle_bench import LIMIT_S
from tests.waiting import until
from trident.adapters.sagemaker.layout import ModelFolder
from trident.adapters.sagemaker.memory import (
    GPU_EXTRA,
    HOST,
    HOST_EXTRA,
    MemoryBudget,
    Reservations,
    SharedReservations,
    reserve_of,
)
from trident.core.config.schema import ModelConfig
from trident.core.errors import OutOfMemory
from trident.core.observability.hardware import MemoryState

MIB = 1 << 20
GIB = 1 << 30


class Machine:
    """A container of 1 GiB, optionally with GPUs. This process uses `used` bytes of it."""

    def __init__(self, gpus: Sequence[MemoryState | None] = (), others: Reservations | None = None) -> None:
        self.used = 0
        self.looks = 0
        self.trims = 0
        self.gpus = list(gpus)
        self.budget = MemoryBudget(
            self._host,
            lambda: self.gpus,
            gpu_ids=lambda config: range(len(self.gpus)),
            resident=lambda: self.used,
            trim=self._trim,
            others=others,
        )

    def load(self, name: str, model: ModelFolder, takes: int = 0) -> None:
        with self.budget.reservation(name, url(name), model):
            self.used += takes

    def _host(self) -> MemoryState:
        self.looks += 1
        return MemoryState(GIB, GIB - self.used)

    def _trim(self) -> None:
        self.trims += 1


def url(name: str) -> str:
    return f"/models/{name}/model"


def model(mib: int, config: str = "") -> ModelFolder:
    return ModelFolder(Path("unused"), text_format.Parse(config, ModelConfig()), mib * MIB)


def test_a_model_is_admitted_only_if_it_fits() -> None:
    machine = Machine()
    machine.load("a", model(500), takes=500 * MIB)
    with pytest.raises(
        OutOfMemory,
        match="^out of memory: model 'b' needs about 616 MiB of container memory, of which 524 MiB of 1,024 MiB are "
        r"free \(64 MiB are kept for requests\)$",
    ) as caught:
        machine.load("b", model(400))
    assert caught.value.hint == "unload another model and try again"
    machine.used = 0
    machine.budget.give_back()
    machine.load("b", model(400))
    assert machine.trims == 3


def test_a_model_that_can_never_fit_gets_another_hint() -> None:
    with pytest.raises(OutOfMemory) as caught:
        Machine().load("a", model(2000))
    assert caught.value.hint == "use an instance type with more memory"


def test_the_estimate_is_exact_to_the_byte() -> None:
    machine = Machine()
    machine.used = GIB - reserve_of(GIB) - HOST_EXTRA
    machine.load("a", model(0))
    machine.used += 1
    with pytest.raises(OutOfMemory):
        machine.load("a", model(0))


def test_the_last_measured_size_counts() -> None:
    machine = Machine()
    machine.load("a", model(10), takes=600 * MIB)
    assert machine.budget.taken(url("a")) == {HOST: 600 * MIB}
    with pytest.raises(OutOfMemory, match="needs about 600 MiB"):
        machine.load("a", model(10))
    machine.load("b", model(10))
    machine.used = 0
    machine.load("a", model(10), takes=20 * MIB)
    assert machine.budget.taken(url("a")) == {HOST: 20 * MIB}


def test_a_load_beside_another_is_not_measured() -> None:
    machine = Machine()
    with machine.budget.reservation("a", url("a"), model(10)):
        machine.load("b", model(10), takes=MIB)
    with machine.budget.reservation("c", url("c"), model(10)):
        machine.budget.give_back()
    assert [machine.budget.taken(url(name)) for name in "abc"] == [{}, {}, {}]


def test_a_failed_load_releases_its_reservation() -> None:
    machine = Machine()
    with pytest.raises(ZeroDivisionError), machine.budget.reservation("a", url("a"), model(500)):
        raise ZeroDivisionError
    assert machine.budget.taken(url("a")) == {}
    machine.load("b", model(500))


def test_a_load_waits_for_the_reservations_of_others() -> None:
    machine = Machine()
    order: list[str] = []

    def second() -> None:
        with machine.budget.reservation("b", url("b"), model(400)):
            order.append("the second begins")

    with ThreadPoolExecutor() as pool:
        with machine.budget.reservation("a", url("a"), model(400)):
            looks = machine.looks
            waiting = pool.submit(second)
            until(lambda: machine.looks > looks)
            order.append("the first ends")
        waiting.result(LIMIT_S)
    assert order == ["the first ends", "the second begins"]


def test_a_load_does_not_wait_if_memory_is_too_short_already() -> None:
    machine = Machine()
    with machine.budget.reservation("a", url("a"), model(400)):
        machine.used = 600 * MIB
        with pytest.raises(OutOfMemory):
            machine.load("b", model(400))


def test_loads_that_fit_run_side_by_side() -> None:
    machine = Machine()
    together = threading.Barrier(4, timeout=LIMIT_S)

    def load(name: str) -> None:
        with machine.budget.reservation(name, url(name), model(20)):
            together.wait()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(load, name) for name in "abcd"]:
            done.result(LIMIT_S)


def test_each_gpu_with_instances_must_have_room() -> None:
    machine = Machine([MemoryState(8 * GIB, 6 * GIB), MemoryState(8 * GIB, GIB)])
    on_second = "instance_group { kind: KIND_GPU gpus: [ 1 ] }"
    with pytest.raises(OutOfMemory, match="model 'a' needs about 864 MiB of gpu:1 memory, of which 1,024 MiB of 8,192"):
        machine.load("a", model(400, on_second))
    machine.load("b", model(400, "instance_group { kind: KIND_GPU gpus: [ 0 ] count: 2000000000 }"))
    machine.load("c", model(400, "instance_group { kind: KIND_CPU }"))
    with pytest.raises(OutOfMemory, match="gpu:1"):
        machine.load("d", model(400))  # without instance groups there is an instance on each GPU


def test_the_measured_size_on_a_gpu_counts() -> None:
    machine = Machine([MemoryState(8 * GIB, 6 * GIB)])
    with machine.budget.reservation("a", url("a"), model(10)):
        machine.gpus[0] = MemoryState(8 * GIB, 3 * GIB)
    assert machine.budget.taken(url("a")) == {HOST: 0, "gpu:0": 3 * GIB}
    with pytest.raises(OutOfMemory, match="needs about 3,072 MiB of gpu:0 memory"):
        machine.load("a", model(10))


def test_a_missing_gpu_is_left_to_the_engine() -> None:
    Machine().load("a", model(10, "instance_group { kind: KIND_GPU gpus: [ 3 ] }"))


def test_unknown_memory_is_not_checked() -> None:
    budget = MemoryBudget(lambda: None, lambda: [None], gpu_ids=lambda config: [0])
    with budget.reservation("a", url("a"), model(10_000_000)):
        pass
    machine = Machine([None])
    machine.load("a", model(10))
    assert machine.budget.taken(url("a")) == {HOST: 0}


@pytest.mark.parametrize(
    ("total", "reserve"), [(GIB, 64 * MIB), (4 * GIB, GIB // 5), (64 * GIB, 512 * MIB), (0, 64 * MIB)]
)
def test_the_reserve_is_a_part_of_the_total_within_bounds(total: int, reserve: int) -> None:
    assert reserve_of(total) == reserve


def test_the_budget_of_this_machine_admits_what_fits() -> None:
    with MemoryBudget.of_machine().reservation("a", url("a"), model(1)):
        pass
    with pytest.raises(OutOfMemory), MemoryBudget.of_machine().reservation("a", url("a"), model(1 << 30)):
        pass
    limited = MemoryBudget.of_machine(limit=GPU_EXTRA)
    with (
        pytest.raises(OutOfMemory, match=r"of which 0 MiB of 64 MiB are free"),
        limited.reservation("a", "", model(1)),
    ):
        pass


# --- several front ends


def test_a_load_counts_what_other_front_ends_may_take(tmp_path: Path) -> None:
    machine, other = (Machine(others=SharedReservations(tmp_path)) for _ in range(2))
    loading, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        with machine.budget.reservation("a", url("a"), model(400)):
            loading.set()
            assert goes_on.wait(LIMIT_S)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(hold)
        assert loading.wait(LIMIT_S)
        other.load("small", model(50))  # there is room for this one beside it
        second = pool.submit(other.load, "b", model(400))
        looks = other.looks
        until(lambda: other.looks > looks + 1)  # it looks again while it waits
        assert not second.done()
        goes_on.set()
        first.result(LIMIT_S)
        second.result(LIMIT_S)


def test_what_a_load_took_is_not_measured_beside_another_front_end(tmp_path: Path) -> None:
    machine, other = (Machine(others=SharedReservations(tmp_path)) for _ in range(2))
    with machine.budget.reservation("a", url("a"), model(10)):
        other.load("b", model(10))
        machine.used = 200 * MIB
    assert machine.budget.taken(url("a")) == {}
    with machine.budget.reservation("c", url("c"), model(10)):
        other.budget.give_back()
    assert machine.budget.taken(url("c")) == {}
    machine.load("d", model(10), takes=20 * MIB)
    assert machine.budget.taken(url("d")) == {HOST: 20 * MIB}


def test_the_reservation_of_a_front_end_that_died_is_void(tmp_path: Path) -> None:
    machine = Machine(others=SharedReservations(tmp_path))
    (tmp_path / "1-0.load").write_text('{"container":1000000000}')
    machine.load("a", model(400))
    assert list(tmp_path.glob("*.load")) == []
