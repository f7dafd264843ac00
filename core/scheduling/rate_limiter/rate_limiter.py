"""The rate limiter of a server.

Source: docs/spec/schedulers.md section 3.6.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from core.config.placement import Placement
from core.observability.metrics.snapshot import ResourceMetrics
from core.scheduling.rate_limiter.claim import WAITING, Claim
from core.scheduling.rate_limiter.limits import check_limits, resource_limits
from core.scheduling.rate_limiter.line import Line
from core.scheduling.rate_limiter.resource_limit import ResourceLimit
from core.scheduling.rate_limiter.resources import needs_of


class RateLimiter:
    """Knows the instances of all models that hold resources. Any thread; one short lock for all claims.

    `options` are the explicit limits. A resource that they do not name has as many copies as the neediest instance
    holds; that changes with the instances.
    """

    def __init__(self, options: Iterable[ResourceLimit] = ()) -> None:
        self._options = tuple(options)
        self._lock = threading.Lock()
        self._lines: list[Line] = []  # guarded by the lock

    def enter(self, placement: Placement, model: str) -> Claim | None:
        """The claim of a new instance; None if it needs nothing, and so never waits.

        Raises ConfigInvalid, with Triton's text, if it needs more than there can be; then nothing has changed.
        """
        needs = needs_of(placement)
        if not needs:
            return None
        with self._lock:
            others = [claim.needs for line in self._lines for claim in line.claims]
            check_limits(placement, model, others, self._options)
            joined = [line for line in self._lines if not needs.keys().isdisjoint(line.limits)]
            line = Line(
                [claim for other in joined for claim in other.claims], max((other.clock for other in joined), default=0)
            )
            claim = Claim(placement.name, needs, placement.limit.priority, self._lock, line)
            line.claims.append(claim)
            self._lines = [other for other in self._lines if other not in joined] + [line]
            self._limit(line)
            return claim

    def leave(self, claim: Claim) -> None:
        """Forget an instance, which executes nothing any more."""
        with self._lock:
            line = claim.line
            line.claims.remove(claim)
            if not line.claims:
                self._lines.remove(line)
            else:
                self._limit(line)

    def lacking(self, holder: Placement, others: Iterable[Placement]) -> str:
        """The resource for which each of `others` must wait as long as an execution of `holder` runs.

        "" if one of them can run meanwhile, once what further executions hold is free.
        """
        held = needs_of(holder)
        with self._lock:
            limits = {resource: limit for line in self._lines for resource, limit in line.limits.items()}
        lacking = ""
        for other in others:
            needs = needs_of(other)
            short = (at for at, count in needs.items() if at in held and limits.get(at, 0) - held[at] < count)
            first = next(short, None)
            if first is None:
                return ""
            lacking = lacking or first.name
        return lacking

    def _limit(self, line: Line) -> None:
        """Set the limits anew. Under the lock."""
        line.limits = resource_limits([claim.needs for claim in line.claims], self._options)
        line.admit()

    def metrics(self) -> tuple[ResourceMetrics, ...]:
        """Every resource that an instance needs, by name and device."""
        found: list[ResourceMetrics] = []
        with self._lock:
            for line in self._lines:
                free = line.free()
                for resource, limit in line.limits.items():
                    waiting = sum(claim.state is WAITING and resource in claim.needs for claim in line.claims)
                    found.append(
                        ResourceMetrics(
                            resource=resource.name,
                            device=resource.place,
                            limit=limit,
                            held=limit - free[resource],
                            waiting=waiting,
                        )
                    )
        return tuple(sorted(found, key=lambda each: (each.resource, each.device)))
