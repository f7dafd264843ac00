"""How many copies of a resource there are: what the server's options say, otherwise what the models need.

Source: docs/spec/schedulers.md section 3.6, docs/spec/server-options.md (rate-limit-resource).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from core.config.placement import Placement
from core.errors import ConfigInvalid
from core.scheduling.rate_limiter.resource_limit import ResourceLimit
from core.scheduling.rate_limiter.resources import Needs, Resource, resource_of


def explicit_limit(resource: Resource, options: Iterable[ResourceLimit]) -> int | None:
    """The limit that the options set; None if none of them names the resource.

    Of several options that apply the largest counts. A device that no option covers has no copies of a resource that
    others name.
    """
    named = [limit for limit in options if limit.name.lower() == resource.name]
    if not named:
        return None
    return max(
        (limit.count for limit in named if resource.device is None or limit.device in (None, resource.device)),
        default=0,
    )


def resource_limits(all_needs: Sequence[Needs], options: Iterable[ResourceLimit]) -> Mapping[Resource, int]:
    """The limit of each resource that one of `all_needs` has: explicit, or else what suffices for the neediest."""
    options = tuple(options)
    limits: dict[Resource, int] = {}
    for needs in all_needs:
        for resource, count in needs.items():
            limits[resource] = max(limits.get(resource, 0), count)
    for resource in limits:
        explicit = explicit_limit(resource, options)
        if explicit is not None:
            limits[resource] = explicit
    return limits


def check_limits(placement: Placement, model: str, others: Iterable[Needs], options: Iterable[ResourceLimit]) -> None:
    """Raise ConfigInvalid, with Triton's text, for an instance that could never run beside those with `others`."""
    options = tuple(options)
    taken = {resource for needs in others for resource in needs}
    for need in placement.limit.needs:
        resource = resource_of(need, placement)
        limit = explicit_limit(resource, options)
        if limit is not None and limit < need.count:
            raise ConfigInvalid(
                f'Resource count for "{need.name}" is limited to {limit} which will prevent scheduling of one or more '
                f"model instances, the minimum required count is {need.count}",
                hint=f"ask for less in instance_group.rate_limiter, or start the server with {_option(need.count)}",
                model=model,
            )
        own = {resource_of(other, placement) for other in placement.limit.needs}
        if any(other.name == resource.name and _kinds_differ(other, resource) for other in taken | own):
            raise ConfigInvalid(
                f'Resource "{need.name}" is present as both global and device-specific resource in the model '
                "configuration.",
                hint="give it the same 'global' in all models that use it, or another name",
                model=model,
            )


def _kinds_differ(one: Resource, other: Resource) -> bool:
    return (one.device is None) is not (other.device is None)


def _option(count: int) -> str:
    return f"--rate-limit-resource=<name>:{count} or more"
