"""The resources that executions hold.

Source: docs/spec/schedulers.md section 3.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from core.config.instance_limit import ResourceNeed
from core.config.placement import Placement


class Resource(NamedTuple):
    """A name in lower case, because case does not count, and a device; None for all devices together.

    Instances on a CPU count as those of device 0, as in Triton.
    """

    name: str
    device: int | None

    @property
    def place(self) -> str:
        """The device as a label of metrics; empty for a global resource."""
        return "" if self.device is None else str(self.device)


# How many copies of each resource an execution holds, at least one of each.
Needs = Mapping[Resource, int]


def resource_of(need: ResourceNeed, placement: Placement) -> Resource:
    return Resource(need.name.lower(), None if need.is_global else placement.device_id)


def needs_of(placement: Placement) -> dict[Resource, int]:
    """What each execution of the instance holds. Of a resource that is named twice the last count is taken."""
    return {resource_of(need, placement): need.count for need in placement.limit.needs}
