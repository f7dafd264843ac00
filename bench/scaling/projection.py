"""From the costs of one request to what a server with many cores can do. Pure; nothing here measures.

An engine is one interpreter: what it does for a request, it does on one core. A front end is another one. So a server
with E engines and F front ends on C cores answers at most

    min(E / engine, F / front end, C / (engine + front end))    requests a second, with the costs in seconds

The client is on other machines.
"""

from __future__ import annotations

from dataclasses import dataclass

_MICRO = 1e6


@dataclass(frozen=True, slots=True)
class Costs:
    """The CPU time of one request in microseconds: in the engine that has it, and in the front end."""

    engine_us: float
    front_end_us: float

    @property
    def total_us(self) -> float:
        return self.engine_us + self.front_end_us

    @property
    def one_engine_rate(self) -> float:
        """The requests a second at which one engine keeps its core busy all the time."""
        return _MICRO / self.engine_us

    @property
    def one_engine_cores(self) -> float:
        """The cores that one engine and the front ends before it can use: with more of them it is the limit."""
        return self.total_us / self.engine_us


@dataclass(frozen=True, slots=True)
class Plan:
    """Processes on `cores`, and the requests a second that they can answer. `limit` is what is used up first."""

    cores: int
    engines: int
    front_ends: int
    rate: float
    limit: str


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What a machine on which the client runs as well can answer, at `client_us` of CPU time a request there."""

    cores: int
    costs: Costs
    client_us: float

    @property
    def rate(self) -> float:
        """The requests a second that take all cores, however many engines there are."""
        return self.cores * _MICRO / (self.costs.total_us + self.client_us)

    @property
    def busy_engine(self) -> float:
        """The part of a core that one engine needs for them; more than 1: it ends before."""
        return self.rate / self.costs.one_engine_rate

    def times(self, engines: int) -> float:
        """How many times as many requests as one engine so many of them can answer, at the same costs."""
        one = self.costs.one_engine_rate
        return min(engines * one, self.rate) / min(one, self.rate)


def plan(costs: Costs, cores: int, engines: int, front_ends: int) -> Plan:
    limits = {
        "engines": engines * _MICRO / costs.engine_us,
        "front ends": front_ends * _MICRO / costs.front_end_us,
        "cores": cores * _MICRO / costs.total_us,
    }
    limit = min(limits, key=lambda name: limits[name])
    return Plan(cores, engines, front_ends, limits[limit], limit)


def best_plan(costs: Costs, cores: int, engines: int = 0) -> Plan:
    """The fewest processes that answer most; `engines` 0: as many as are best, otherwise no other number of them."""
    numbers = [engines] if engines else range(1, cores + 1)
    plans = [plan(costs, cores, number, front_ends) for number in numbers for front_ends in range(1, cores + 1)]
    return max(plans, key=lambda each: (round(each.rate), -each.engines - each.front_ends))
