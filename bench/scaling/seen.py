"""What was measured of one server: its rate, and the CPU time of a request in its processes and in the client."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.scaling.projection import Costs

_MICRO = 1e6


@dataclass(frozen=True, slots=True)
class Shape:
    """The processes of one server."""

    front_ends: int
    engines: int

    @property
    def options(self) -> list[str]:
        return [f"--http-workers={self.front_ends}", f"--engines={self.engines}"]

    def __str__(self) -> str:
        return f"{plural(self.engines, 'engine')}, {plural(self.front_ends, 'front end')}"


@dataclass(slots=True)
class Seen:
    """What was measured of one server and one case; a value for each round."""

    rates: list[float] = field(default_factory=list)
    engine_us: list[float] = field(default_factory=list)
    front_end_us: list[float] = field(default_factory=list)
    client_us: list[float] = field(default_factory=list)

    def take(
        self, requests: int, seconds: float, engines: Sequence[float], front_ends: Sequence[float], client: float
    ) -> None:
        """Add a round: its requests, how long it took, and the CPU seconds of each process."""
        self.rates.append(requests / seconds)
        self.engine_us.append(sum(engines) / requests * _MICRO)
        self.front_end_us.append(sum(front_ends) / requests * _MICRO)
        self.client_us.append(client / requests * _MICRO)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def costs(self) -> Costs:
        return Costs(statistics.median(self.engine_us), statistics.median(self.front_end_us))

    @property
    def busy_cores(self) -> float:
        """How many cores engines, front ends and client kept busy: 1.0 is one core all the time."""
        rounds = zip(self.rates, self.engine_us, self.front_end_us, self.client_us, strict=True)
        return statistics.median(rate * sum(costs_us) / _MICRO for rate, *costs_us in rounds)

    def times(self, other: Seen) -> list[float]:
        """How many times as many requests as `other` answered, round by round."""
        return [own / others for own, others in zip(self.rates, other.rates, strict=True)]


def plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
