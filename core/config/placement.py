"""The devices that the instances of a model run on: the instance groups of a configuration, one entry per instance.

Source: Triton model configuration, `instance_group`; docs/spec/model-config.md section 2.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from trident.core.config.schema import ModelConfig, ModelInstanceGroup


@dataclass(frozen=True, slots=True)
class ResourceNeed:
    """How many copies of a resource an execution holds. A global resource is one for all devices."""

    name: str
    count: int
    is_global: bool


@dataclass(frozen=True, slots=True)
class InstanceLimit:
    """`needs` are what each execution holds. An instance of priority 2 executes half as often as one of priority 1."""

    needs: tuple[ResourceNeed, ...] = ()
    priority: int = 1


NO_LIMIT = InstanceLimit()


def instance_limit(group: ModelInstanceGroup) -> InstanceLimit:
    """The limit of each instance of `group`. A resource of which it needs no copies is none; priority 0 means 1."""
    if not group.HasField("rate_limiter"):
        return NO_LIMIT
    settings = group.rate_limiter
    needs = [
        ResourceNeed(resource.name, resource.count, getattr(resource, "global"))
        for resource in settings.resources
        if resource.count
    ]
    return InstanceLimit(tuple(needs), max(1, settings.priority))


class DeviceKind(Enum):
    CPU = "CPU"
    GPU = "GPU"


@dataclass(frozen=True, slots=True)
class Placement:
    """The device of one instance. `device_id` is the number of a GPU; `name` is `GROUP_N`, N counts the instances.

    `limit` is for the rate limiter. `profiles` are the optimization profiles of its group, for TensorRT.
    """

    name: str
    kind: DeviceKind
    device_id: int = 0
    limit: InstanceLimit = NO_LIMIT
    profiles: tuple[str, ...] = ()

    @property
    def device(self) -> str:
        """`cpu` or `gpu:0`, as tables and statistics show it."""
        return "cpu" if self.kind is DeviceKind.CPU else f"gpu:{self.device_id}"


def placements(config: ModelConfig) -> tuple[Placement, ...]:
    """One placement per instance, ordered by group, count and GPU; the instances of one count on several GPUs share a
    name.

    KIND_MODEL leaves the device to the backend and counts as CPU here. Passive groups get no placements, because no
    requests are scheduled on them.
    """
    expanded: list[Placement] = []
    for group in config.instance_group:
        if group.passive:
            continue
        limit, profiles = instance_limit(group), tuple(group.profile)
        for number in range(group.count):
            name = f"{group.name}_{number}"
            if group.kind == ModelInstanceGroup.KIND_GPU:
                expanded += [Placement(name, DeviceKind.GPU, device_id, limit, profiles) for device_id in group.gpus]
            else:
                expanded.append(Placement(name, DeviceKind.CPU, limit=limit))
    return tuple(expanded)


def placement_changes(current: Sequence[Placement], wanted: Sequence[Placement]) -> tuple[list[int], list[Placement]]:
    """The changes from `current` to `wanted`: the indices to remove, highest first, and the placements to add.

    Only kind, device, limit and profiles matter: an instance that stays keeps its name even if the wanted one differs.
    Of those that are alike in them the last instances are removed, and the last wanted ones are added.
    Source: docs/spec/repository.md section 1.6, "What reloads".
    """
    unmatched = Counter(_place(placement) for placement in current)
    added: list[Placement] = []
    for placement in wanted:
        if unmatched[_place(placement)]:
            unmatched[_place(placement)] -= 1
        else:
            added.append(placement)
    removed: list[int] = []
    for index in reversed(range(len(current))):
        if unmatched[_place(current[index])]:
            unmatched[_place(current[index])] -= 1
            removed.append(index)
    return removed, added


def _place(placement: Placement) -> tuple[DeviceKind, int, InstanceLimit, tuple[str, ...]]:
    return placement.kind, placement.device_id, placement.limit, placement.profiles
