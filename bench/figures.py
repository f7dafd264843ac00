"""The figures of a benchmark, one quantity each, and its two files: JSON for programs, Markdown for people."""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench import machine
from bench.machine_load import LoadSeen
from bench.publication import Publication, machine_sentence
from bench.tables import number, table
from bench.target import TARGET_HEADER, Target

_NUMBERS = re.compile(r"\[[\d\s.,e+-]+\]")
_HEADER = ["case", "what", "unit", "median", "least", "most", "times"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity, with a value for each round or repetition."""

    case: str
    what: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def row(self) -> list[str]:
        spread = (self.median, min(self.values), max(self.values))
        return [self.case, self.what, self.unit, *map(number, spread), str(len(self.values))]


@dataclass(slots=True)
class Figures:
    """One run. `command` repeats it; `conditions` apply to all figures, a remark explains what limits one of them."""

    command: str
    conditions: str
    date: str = field(default_factory=machine.today)
    machine: dict[str, object] = field(default_factory=machine.describe)
    figures: list[Figure] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    seen: LoadSeen | None = None

    def note(self, case: str, what: str, unit: str, values: Sequence[float]) -> Figure:
        figure = Figure(case, what, unit, tuple(values))
        self.figures.append(figure)
        return figure

    def at_least(self, case: str, what: str, goal: float, measured: float) -> None:
        self.targets.append(Target(case, what, goal, True, measured))

    def at_most(self, case: str, what: str, goal: float, measured: float) -> None:
        self.targets.append(Target(case, what, goal, False, measured))

    def publish(self, publication: Publication, name: str) -> None:
        """Write both files and print the tables."""
        self.seen = publication.seen()
        publication.write(name, self.to_json(), self.markdown(), self.seen)
        print(self.markdown())

    def to_json(self) -> str:
        document = dataclasses.asdict(self)
        for figure in document["figures"]:
            figure["values"] = [float(f"{value:.6g}") for value in figure["values"]]
        # A list of numbers takes one line.
        return _NUMBERS.sub(lambda found: " ".join(found[0].split()), json.dumps(document, indent=1)) + "\n"

    def markdown(self) -> str:
        parts = [
            self._machine_text(),
            f"Run again with `{self.command}`.",
            table(_HEADER, [figure.row() for figure in self.figures]),
            table(TARGET_HEADER, [target.row() for target in self.targets]),
            "\n".join(f"* {remark}" for remark in self.remarks),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _machine_text(self) -> str:
        about = self.machine
        return (
            f"{self.date}: {about['cpu']}, {about['cores']} cores, {about['memory_gb']} GB, Linux {about['kernel']}, "
            f"Python {about['python']}. {self.conditions}{machine_sentence(self.seen)}"
        )
