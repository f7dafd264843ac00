"""What the rate limiter is told about the instances of a group.

Source: Triton model configuration, `instance_group.rate_limiter`; docs/spec/schedulers.md section 3.6.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.config.schema import ModelInstanceGroup


@dataclass(frozen=True, slots=True)
class ResourceNeed:
    """How many copies of a resource an execution holds. A global resource is one for all devices."""

    name: str
    count: int
    is_global: bool


@dataclass(frozen=True, slots=True)
class InstanceLimit:
    """`needs` are what each execution holds. An instance of priority 2 gets half the turns of one of priority 1."""

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
