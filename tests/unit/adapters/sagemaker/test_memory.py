"""The memory budget, with invented figures, and once with the figures of this machine."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.core.lifecycle.lifecycle_bench import LIMIT_S
from tests.waiting import until
from trident.adapters.sagemaker.layout import ModelFolder
from trident.adapters.sagemaker.multi_model import HOST, MemoryBudget, SharedReservations
from trident.core.config.schema import ModelConfig
from trident.core.errors import OutOfMemory
from trident.core.lifecycle.memory import Reservations
from trident.core.observability.hardware import MemoryState

MIB = 1 << 20
GIB = 1 << 30


class Machine:
    """A container of 1 GiB. This process uses `used` bytes of it."""

    def __init__(self, others: Reservations | None = None) -> None:
        self.used = 0
        self.looks = 0
        self.trims = 0
        self.budget = MemoryBudget(self._host, resident=lambda: self.used, trim=self._trim, others=others)

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


def model(mib: int) -> ModelFolder:
    return ModelFolder(Path("unused"), ModelConfig(), mib * MIB)


def test_the_budget_of_this_machine_admits_what_fits() -> None:
    with MemoryBudget.of_machine().reservation("a", url("a"), model(1)):
        pass
    with pytest.raises(OutOfMemory), MemoryBudget.of_machine().reservation("a", url("a"), model(1 << 30)):
        pass
    limited = MemoryBudget.of_machine(limit=64 * MIB)
    with pytest.raises(OutOfMemory, match=r"of which 0 MiB of 64 MiB are free"), limited.reservation("a", "", model(1)):
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
