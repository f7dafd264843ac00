from __future__ import annotations

from typing import Any

import pytest

from trident.core.backends.backend import BackendInstance
from trident.core.config.placement import DeviceKind, Placement
from trident.core.errors import ServerStopping
from trident.core.lifecycle.version import RestingInstances


class FakeInstance:
    def __init__(self, name: str) -> None:
        self.placement = Placement(name, DeviceKind.CPU)


class FakeScheduler:
    """As the batcher: it keeps one instance, and takes none after it was closed."""

    def __init__(self, *instances: Any) -> None:
        self.instances = list(instances)
        self.forgotten: list[BackendInstance] = []
        self.is_closed = False

    def add(self, instance: BackendInstance) -> None:
        if self.is_closed:
            raise ServerStopping("closed")
        self.instances.append(instance)

    def remove(self, instance: BackendInstance) -> None:
        if instance not in self.instances or len(self.instances) == 1:
            raise ValueError("unknown or the last one")
        self.instances.remove(instance)

    def forget(self, instance: BackendInstance) -> None:
        self.forgotten.append(instance)


A: Any = FakeInstance("a")
B: Any = FakeInstance("b")


@pytest.fixture
def scheduler() -> FakeScheduler:
    return FakeScheduler(A, B)


@pytest.fixture
def resting(scheduler: FakeScheduler) -> RestingInstances:
    return RestingInstances(scheduler)  # type: ignore[arg-type]


def test_an_instance_rests_until_it_serves_again(scheduler: FakeScheduler, resting: RestingInstances) -> None:
    resting.change(A, False)
    resting.change(A, False)
    assert scheduler.instances == [B]
    resting.change(A, True)
    resting.change(A, True)
    assert scheduler.instances == [B, A]


def test_what_an_instance_remembered_is_lost_when_it_stops_serving(
    scheduler: FakeScheduler, resting: RestingInstances
) -> None:
    resting.change(A, False)
    resting.change(A, True)
    resting.change(B, False)
    assert scheduler.forgotten == [A, B]


def test_the_last_instance_keeps_its_work(scheduler: FakeScheduler, resting: RestingInstances) -> None:
    resting.change(A, False)
    resting.change(B, False)
    assert scheduler.instances == [B]
    resting.change(B, True)
    assert scheduler.instances == [B]


def test_an_instance_may_be_removed_while_it_rests(scheduler: FakeScheduler, resting: RestingInstances) -> None:
    resting.change(A, False)
    resting.remove(A)
    resting.change(A, True)
    assert scheduler.instances == [B]
    scheduler.add(A)
    resting.remove(B)
    assert scheduler.instances == [A]


def test_nothing_comes_back_after_an_unload(scheduler: FakeScheduler, resting: RestingInstances) -> None:
    resting.change(A, False)
    scheduler.is_closed = True
    resting.change(A, True)
    assert scheduler.instances == [B]
