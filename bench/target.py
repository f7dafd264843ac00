"""A target: a figure that a benchmark has to reach."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

_VERDICTS = {True: "yes", False: "**no**", None: "not measured"}


@dataclass(frozen=True, slots=True)
class Target:
    """`measured` is None if the run lacks a cell that it needs."""

    case: str
    what: str
    goal: float
    at_least: bool
    measured: float | None

    @property
    def reached(self) -> bool | None:
        if self.measured is None:
            return None
        compare: Callable[[float, float], bool] = operator.ge if self.at_least else operator.le
        return compare(self.measured, self.goal)

    def row(self) -> list[str]:
        goal = f"{'≥' if self.at_least else '≤'} {self.goal:g}"
        measured = "" if self.measured is None else f"{self.measured:.2f}"
        return [self.case, self.what, goal, measured, _VERDICTS[self.reached]]


TARGET_HEADER = ["case", "what", "to reach", "measured", "reached"]
