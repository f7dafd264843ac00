"""Placements of instances that hold resources, for tests."""

from __future__ import annotations

from trident.core.config.placement import DeviceKind, InstanceLimit, Placement, ResourceNeed


def limit(priority: int = 1, *, everywhere: bool = False, **needs: int) -> InstanceLimit:
    """`needs` are counts by the name of the resource; `everywhere` makes them global."""
    return InstanceLimit(tuple(ResourceNeed(name, count, everywhere) for name, count in needs.items()), priority)


def placed(name: str, of: InstanceLimit, gpu: int | None = None) -> Placement:
    """On a GPU with a number, on the CPU without."""
    return Placement(name, DeviceKind.CPU if gpu is None else DeviceKind.GPU, gpu or 0, of)
