"""An explicit limit of the rate limiter. Imported with the settings, so it imports nothing of the engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """A value of --rate-limit-resource. `device` is None for every device; a global resource ignores it."""

    name: str
    count: int
    device: int | None = None
