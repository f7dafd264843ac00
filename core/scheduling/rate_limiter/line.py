"""The claims that compete for resources, directly or through others.

Instances that share nothing stand in different lines, so that the turns of one line say nothing about another's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from core.scheduling.rate_limiter.claim import HELD, WAITING, Claim
from core.scheduling.rate_limiter.resources import Resource
from core.scheduling.rate_limiter.turns import Bid, admitted


class Line:
    """Every method is called under the limiter's lock. `limits` are those of the resources of its claims.

    `clock` is the latest turn that has come. A claim that comes anew begins there, so that an instance that was loaded
    or idle for long does not make up for all the turns that others had meanwhile (start-time fair queueing).
    """

    def __init__(self, claims: Iterable[Claim] = (), clock: int = 0) -> None:
        self.claims = list(claims)
        self.limits: Mapping[Resource, int] = {}
        self.clock = clock
        self._arrivals = max((claim.arrival for claim in self.claims), default=0)
        for claim in self.claims:
            claim.line = self

    def stage(self, claim: Claim) -> None:
        """IDLE or HELD -> WAITING"""
        self._arrivals += 1
        claim.arrival = self._arrivals
        claim.turn = max(claim.turn, self.clock)
        claim.move(WAITING)

    def admit(self) -> None:
        """WAITING -> HELD for the claims whose turn has come."""
        waiting = [claim for claim in self.claims if claim.state is WAITING]
        if not waiting:
            return
        for index in admitted([Bid(claim.turn, claim.arrival, claim.needs) for claim in waiting], self.free()):
            claim = waiting[index]
            self.clock = max(self.clock, claim.turn)
            claim.move(HELD)

    def free(self) -> dict[Resource, int]:
        """The copies that nobody holds; below zero where a limit sank while more was held."""
        free = dict(self.limits)
        for claim in self.claims:
            if claim.state is HELD:
                for resource, count in claim.needs.items():
                    free[resource] = free.get(resource, 0) - count
        return free
