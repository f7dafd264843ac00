"""Arrivals at a server whose clients do not wait for its answers, each made from a seed.

They are nanoseconds from the beginning, ascending.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

_S = 1_000_000_000


def steady(rate: float, seconds: float, seed: int = 1) -> list[int]:
    """`rate` requests per second on average, independent of each other (Poisson)."""
    return _arrivals(lambda at: rate, rate, seconds, seed)


def bursts(rate: float, seconds: float, seed: int = 1, factor: float = 4.0) -> list[int]:
    """As `steady`, but `factor` times as many requests during a fifth of each second."""
    base = rate / (0.8 + 0.2 * factor)
    return _arrivals(lambda at: base * (factor if at % 1 < 0.2 else 1), base * factor, seconds, seed)


def diurnal(rate: float, seconds: float, seed: int = 1) -> list[int]:
    """The rate swings like that of a day, from a fifth of `rate` to 1.8 times as many, twice in `seconds`."""

    def at(second: float) -> float:
        return rate * (1 - 0.8 * math.cos(4 * math.pi * second / seconds))

    return _arrivals(at, 1.8 * rate, seconds, seed)


TRACES: dict[str, Callable[[float, float], list[int]]] = {"steady": steady, "bursts": bursts, "diurnal": diurnal}


def _arrivals(rate: Callable[[float], float], highest: float, seconds: float, seed: int) -> list[int]:
    """Arrivals whose rate changes with the time in seconds and is never above `highest`."""
    source = random.Random(seed)
    found: list[int] = []
    at = 0.0
    while (at := at + source.expovariate(highest)) < seconds:
        if source.random() * highest < rate(at):
            found.append(int(at * _S))
    return found
