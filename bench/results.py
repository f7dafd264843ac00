"""The figures of a run, their tables and files. A run that shared its cores with other processes is not published.

A run looks at the machine before it begins and watches it until it ends. It does not begin on a crowded machine, and
if the machine was crowded during the run, its files go to build/bench/unpublished. `--crowded` overrides both and marks
the results.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import shlex
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import machine
from bench.machine import OTHERS_LIMIT, STOLEN_LIMIT, LoadWatch, MachineLoad, look
from tests.project import ROOT
from trident.tools.bench.measure import number


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with padded columns, which is readable in a terminal too."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


# Standard deviations between the median and the ends of a 95 % interval, in halves of the square root of the count.
NORMAL_95 = 1.96
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


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that a benchmark has to reach."""

    case: str
    what: str
    goal: float
    at_least: bool
    measured: float

    @property
    def reached(self) -> bool:
        return self.measured >= self.goal if self.at_least else self.measured <= self.goal

    def row(self) -> list[str]:
        goal = f"{'≥' if self.at_least else '≤'} {self.goal:g}"
        return [self.case, self.what, goal, f"{self.measured:.2f}", "yes" if self.reached else "**no**"]


GOAL_HEADER = ["case", "what", "to reach", "measured", "reached"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one load. `cpu_us` is the server's CPU time per request, microseconds."""

    requests_per_second: float
    cpu_us: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the ratios of pairs of turns, with the 95 % interval of that median."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"

    @classmethod
    def of(cls, over: Sequence[float], under: Sequence[float]) -> Ratio:
        """The ratios pair by pair. The interval is that of order statistics, which assumes no distribution."""
        ratios = sorted(above / below for above, below in zip(over, under, strict=True))
        reach = NORMAL_95 * math.sqrt(len(ratios)) / 2
        low = max(0, math.floor(len(ratios) / 2 - reach))
        high = min(len(ratios) - 1, math.ceil(len(ratios) / 2 + reach))
        return cls(statistics.median(ratios), ratios[low], ratios[high])


@dataclass(slots=True)
class Comparison:
    """The pairs of turns of several loads, the last of which is the base."""

    title: str
    connections: int
    pairs: list[dict[str, Turn]]
    errors: int

    @property
    def loads(self) -> list[str]:
        return list(self.pairs[0])

    def rates(self, load: str) -> list[float]:
        return [pair[load].requests_per_second for pair in self.pairs]

    def cpu_us(self, load: str) -> list[float]:
        return [pair[load].cpu_us for pair in self.pairs]

    def rate_ratio(self, load: str, base: str = "") -> Ratio:
        return Ratio.of(self.rates(load), self.rates(base or self.loads[-1]))

    def cpu_ratio(self, load: str, base: str = "") -> Ratio:
        return Ratio.of(self.cpu_us(load), self.cpu_us(base or self.loads[-1]))

    def extra_us(self, load: str) -> float:
        """Extra time of a request over one of the base, in microseconds, with one connection."""
        pairs = zip(self.rates(load), self.rates(self.loads[-1]), strict=True)
        return statistics.median(1e6 / rate - 1e6 / base for rate, base in pairs)

    def cells(self) -> list[list[str]]:
        """A row of `COMPARISON_HEADER` for each load."""
        found = []
        for load in self.loads:
            ratios = ["", ""]
            if load != self.loads[-1]:
                ratios = [str(self.rate_ratio(load)), str(self.cpu_ratio(load))]
            rate, cpu_us = statistics.median(self.rates(load)), statistics.median(self.cpu_us(load))
            cells = [self.title, str(self.connections), load, number(rate), ratios[0], number(cpu_us), ratios[1]]
            found.append([*cells, str(self.errors)])
        return found


COMPARISON_HEADER = ["case", "connections", "what", "requests/s", "ratio", "CPU µs/request", "ratio", "errors"]


@dataclass(slots=True)
class Figures:
    """One run. `command` repeats it; a remark explains what limits a figure."""

    command: str
    date: str = field(default_factory=machine.today)
    machine: dict[str, object] = field(default_factory=machine.describe)
    comparisons: list[Comparison] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    targets: list[Goal] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    load: MachineLoad | None = None

    def note(self, case: str, what: str, unit: str, values: Sequence[float]) -> Figure:
        figure = Figure(case, what, unit, tuple(values))
        self.figures.append(figure)
        return figure

    def at_least(self, case: str, what: str, goal: float, measured: float) -> None:
        self.targets.append(Goal(case, what, goal, True, measured))

    def at_most(self, case: str, what: str, goal: float, measured: float) -> None:
        self.targets.append(Goal(case, what, goal, False, measured))

    def publish(self, publication: Publication, name: str) -> None:
        """Write both files and print the tables."""
        self.load = publication.load()
        publication.write(name, self.to_json(), self.markdown(), self.load)
        print(self.markdown())

    def to_json(self) -> str:
        document = dataclasses.asdict(self)
        for figure in document["figures"]:
            figure["values"] = [float(f"{value:.6g}") for value in figure["values"]]
        # A list of numbers takes one line.
        return _NUMBERS.sub(lambda found: " ".join(found[0].split()), json.dumps(document, indent=1)) + "\n"

    def markdown(self) -> str:
        about = self.machine
        compared = [cells for comparison in self.comparisons for cells in comparison.cells()]
        parts = [
            f"{self.date}: {about['cpu']}, {about['cores']} cores, {about['memory_gb']} GB, Linux {about['kernel']}, "
            f"Python {about['python']}. Servers and clients share the cores.{machine_sentence(self.load)}",
            f"Run again with `{self.command}`.",
            table(COMPARISON_HEADER, compared) if compared else "",
            table(_HEADER, [figure.row() for figure in self.figures]) if self.figures else "",
            table(GOAL_HEADER, [target.row() for target in self.targets]) if self.targets else "",
            "\n".join(f"* {remark}" for remark in self.remarks),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"


RESULTS = ROOT / "bench" / "results"
UNPUBLISHED = ROOT / "build" / "bench" / "unpublished"
LIMITS = f"The limits are {OTHERS_LIMIT:.0%} for other processes and {STOLEN_LIMIT:.0%} for stolen time."
CROWDED = "**Crowded: this run shared its cores.**"


class Program(argparse.ArgumentParser):
    """The command line of `python -m bench NAME`, which publishes what it measures. `about` keeps its lines."""

    def __init__(self, name: str, about: str | None) -> None:
        super().__init__(
            prog=f"python -m bench {name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        self.add_argument("--results", type=Path, default=RESULTS, help="folder of the two result files")
        self.add_argument(
            "--crowded", action="store_true", help="measure and publish on a crowded machine too, marked as crowded"
        )

    def begin(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, Publication, Figures]:
        """The options, and the run, which begins now."""
        options = self.parse_args(arguments)
        return options, Publication(options), Figures(shlex.join([*self.prog.split(), *arguments]))


class Publication:
    """One run, from the look at the machine to its files.

    Raises SystemExit with the reason if the machine is crowded and `--crowded` is not given.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        *,
        look: Callable[[], MachineLoad] = look,
        watch: Callable[[], LoadWatch] = LoadWatch,
    ) -> None:
        self._folder: Path = options.results
        self._crowded_allowed: bool = options.crowded
        before = look()
        print(f"the machine before the run: {before.text()}", file=sys.stderr, flush=True)
        if before.crowded and not self._crowded_allowed:
            raise SystemExit(
                f"The machine is crowded: {before.text()}. {LIMITS} "
                "Wait until it is quiet, or give --crowded to measure all the same and mark the results."
            )
        self._watch = watch()

    def load(self) -> MachineLoad:
        return self._watch.load()

    def is_public(self, load: MachineLoad) -> bool:
        return self._crowded_allowed or not load.crowded

    def write(self, name: str, json: str, markdown: str, load: MachineLoad) -> Path:
        """Write NAME.json and NAME.md, and return the path of the latter. `name` follows the date and the machine."""
        folder = self._folder if self.is_public(load) else UNPUBLISHED
        if not self.is_public(load):
            print(f"not published: the machine was crowded during the run, {load.text()}. {LIMITS}", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"{machine.today()}-{machine.slug()}{name}{'-crowded' if load.crowded else ''}"
        (folder / f"{stem}.json").write_text(json)
        (folder / f"{stem}.md").write_text(markdown)
        print(f"wrote {folder / stem}.json and .md", file=sys.stderr)
        return folder / f"{stem}.md"


def machine_sentence(load: MachineLoad | None) -> str:
    if load is None:
        return ""
    mark = f" {CROWDED}" if load.crowded else ""
    return f" During the run {load.text()}.{mark}"


def names_among(known: Sequence[str]) -> type[list[str]]:
    """An argument type: some of `known`, separated by commas."""

    class Names(list[str]):
        def __init__(self, text: str) -> None:
            super().__init__(text.split(","))
            if unknown := sorted(set(self) - set(known)):
                raise argparse.ArgumentTypeError(f"unknown {', '.join(unknown)}; expected some of {', '.join(known)}")

    return Names


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number
