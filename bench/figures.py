"""What the repository's figures are, and the two files of a run: JSON for machines, Markdown for people."""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.plain.report import number, table, target_row
from bench.plain.targets import Target

_NUMBERS = re.compile(r"\[[\d\s.,e+-]+\]")


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was measured, once a round or repetition."""

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
class RepositoryResults:
    """One run. `command` is how it is run again; `conditions` hold for all figures, `remarks` say what limits one."""

    date: str
    machine: dict[str, object]
    command: str
    figures: list[Figure] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    conditions: str = "Server, clients and storage emulator share the cores; ratios are of medians."

    def note(self, case: str, what: str, unit: str, values: Sequence[float]) -> Figure:
        figure = Figure(case, what, unit, tuple(values))
        self.figures.append(figure)
        return figure

    def at_least(self, case: str, what: str, goal: float, measured: float) -> None:
        self.targets.append(Target(case, what, goal, True, measured))

    def at_most(self, case: str, what: str, goal: float, measured: float) -> None:
        self.targets.append(Target(case, what, goal, False, measured))

    def to_json(self) -> str:
        document = dataclasses.asdict(self)
        for figure in document["figures"]:
            figure["values"] = [float(f"{value:.6g}") for value in figure["values"]]
        # A list of numbers is a line.
        return _NUMBERS.sub(lambda found: " ".join(found[0].split()), json.dumps(document, indent=1)) + "\n"

    def markdown(self) -> str:
        header = ["case", "what", "unit", "median", "least", "most", "times"]
        parts = [
            self._machine_text(),
            f"Run again with `{self.command}`.",
            table(header, [figure.row() for figure in self.figures]),
            table(["case", "what", "to reach", "measured", "reached"], [target_row(each) for each in self.targets]),
            "\n".join(f"* {remark}" for remark in self.remarks),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _machine_text(self) -> str:
        about = self.machine
        return (
            f"{self.date}: {about['cpu']}, {about['cores']} cores, {about['memory_gb']} GB, Linux {about['kernel']}, "
            f"Python {about['python']}. {self.conditions}"
        )
