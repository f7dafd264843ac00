"""Who may run next: a pure function of what is free and who waits.

Source: docs/spec/schedulers.md section 3.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from core.scheduling.rate_limiter.resources import Needs, Resource


class Bid(NamedTuple):
    """An instance that waits. The smallest `turn` is first; of equal ones, the smallest `arrival`."""

    turn: int
    arrival: int
    needs: Needs


def admitted(bids: Sequence[Bid], free: Mapping[Resource, int]) -> list[int]:
    """The indices of `bids` that may run now, in their order, if there are `free` copies of the resources.

    One that cannot run yet keeps what it needs from those behind it, so that it is never overtaken for good by others
    that need less. It does not hold up those that need other resources.
    """
    left = dict(free)
    chosen: list[int] = []
    for index in sorted(range(len(bids)), key=lambda index: bids[index][:2]):
        needs = bids[index].needs
        if all(left.get(resource, 0) >= count for resource, count in needs.items()):
            chosen.append(index)
        for resource, count in needs.items():
            left[resource] = left.get(resource, 0) - count
    return chosen
