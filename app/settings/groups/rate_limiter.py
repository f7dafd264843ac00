"""The settings of the rate limiter.

Source: docs/spec/schedulers.md section 3.6, docs/spec/server-options.md section 2 "rate limiter".
"""

from __future__ import annotations

from dataclasses import dataclass

from app.settings.option import option, repeated
from app.settings.option_types import INT32_MAX, BadValue, Kind, choice, integer
from core.scheduling.rate_limiter.resource_limit import ResourceLimit

_SECTION = "Rate limiter"
_FORM = "<resource name>:<count>[:<device>]"
_COUNT = integer(0, INT32_MAX)
_OFF = "off"


def resource_limit(text: str) -> ResourceLimit:
    """One value of --rate-limit-resource. Raises BadValue."""
    name, *numbers = text.split(":")
    if not name or not 1 <= len(numbers) <= 2:
        raise BadValue(
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. "
            f"Got {text}"
        )
    count, *device = (_COUNT.parse(number) for number in numbers)
    return ResourceLimit(name, count, device[0] if device else None)


def _resource(text: str) -> str:
    resource_limit(text)
    return text


@dataclass(frozen=True, kw_only=True, repr=False)
class RateLimiterSettings:
    """Part of ServerSettings."""

    rate_limit: str = option(
        _OFF,
        "rate-limit",
        choice("rate-limit", "execution_count", _OFF),
        "execution_count lets instances take turns at the resources of instance_group.rate_limiter; off ignores them.",
        section=_SECTION,
    )
    rate_limit_resource: tuple[str, ...] = repeated(
        "rate-limit-resource",
        Kind(_FORM, _resource),
        "Copies of a resource, on one device or on each. Without it as many as the neediest instance holds.",
        section=_SECTION,
    )

    @property
    def resource_limits(self) -> tuple[ResourceLimit, ...] | None:
        """The explicit limits of the rate limiter; None without a rate limiter."""
        if self.rate_limit == _OFF:
            return None
        return tuple(resource_limit(text) for text in self.rate_limit_resource)
