"""The core in one thread on a simulated clock: many schedules, each drawn from a seed, and faults that they show."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.project import pure_python_only
from tests.simulation.command import run, search, simulated
from tests.simulation.faults import FAULTS, Fault

pytestmark = pure_python_only


@pytest.fixture
def simulation() -> Iterator[None]:
    with simulated():
        yield


@pytest.mark.usefixtures("simulation")
@pytest.mark.parametrize(("shape", "schedules"), [("", 1500), ("queue", 2000)])
def test_random_schedules_answer_every_request_correctly(shape: str, schedules: int) -> None:
    failed = search(0, schedules, shape)
    assert failed is None, f"python -m tests.simulation --seed {failed.seed} says more\n{failed.world.text()}"


@pytest.mark.usefixtures("simulation")
def test_same_seed_gives_the_same_trace() -> None:
    traces = {seed: run(seed).world.text() for seed in range(100)}
    for seed in reversed(range(100)):
        assert run(seed).world.text() == traces[seed], seed


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.seeds <= 1000], ids=lambda fault: fault.name)
def test_injected_fault_is_found_in_seconds(fault: Fault) -> None:
    with simulated(fault.changes()):
        assert search(0, fault.seeds, fault.shape) is not None


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.seeds > 1000], ids=lambda fault: fault.name)
def test_rare_fault_can_be_injected(fault: Fault) -> None:
    """`python -m tests.simulation --fault all` finds it."""
    assert list(fault.changes())
