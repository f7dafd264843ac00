"""Whether and where a run's files are published: not if the run shared its cores with other processes.

A run looks at the machine before it begins and watches it until it ends. It does not begin on a crowded machine, and
if the machine was crowded during the run, its files go to build/bench/unpublished. `--crowded` overrides both and marks
the results.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import machine
from bench.machine import OTHERS_LIMIT, STOLEN_LIMIT, LoadSeen, LoadWatch, look
from bench.target import TARGET_HEADER, Target
from tests.project import ROOT


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with padded columns, which is readable in a terminal too."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


def number(value: float) -> str:
    """About three significant digits, thousands separated by commas."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


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


RESULTS = ROOT / "bench" / "results"
UNPUBLISHED = ROOT / "build" / "bench" / "unpublished"
LIMITS = f"The limits are {OTHERS_LIMIT:.0%} for other processes and {STOLEN_LIMIT:.0%} for stolen time."
CROWDED = "**Crowded: this run shared its cores.**"


def add_publication_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the two result files")
    parser.add_argument(
        "--crowded", action="store_true", help="measure and publish on a crowded machine too, marked as crowded"
    )


class Publication:
    """One run, from the look at the machine to its files.

    Raises SystemExit with the reason if the machine is crowded and `--crowded` is not given.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        *,
        look: Callable[[], LoadSeen] = look,
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

    def seen(self) -> LoadSeen:
        """The machine since the beginning of the run."""
        return self._watch.seen()

    def is_public(self, seen: LoadSeen) -> bool:
        return self._crowded_allowed or not seen.crowded

    def write(self, name: str, json: str, markdown: str, seen: LoadSeen) -> Path:
        """Write NAME.json and NAME.md, and return the path of the latter. `name` follows the date and the machine."""
        folder = self._folder if self.is_public(seen) else UNPUBLISHED
        if not self.is_public(seen):
            print(f"not published: the machine was crowded during the run, {seen.text()}. {LIMITS}", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"{machine.today()}-{machine.slug()}{name}{'-crowded' if seen.crowded else ''}"
        (folder / f"{stem}.json").write_text(json)
        (folder / f"{stem}.md").write_text(markdown)
        print(f"wrote {folder / stem}.json and .md", file=sys.stderr)
        return folder / f"{stem}.md"


def machine_sentence(seen: LoadSeen | None) -> str:
    """What a result file says of the machine during the run; nothing for files of runs that were not watched."""
    if seen is None:
        return ""
    mark = f" {CROWDED}" if seen.crowded else ""
    return f" During the run {seen.text()}.{mark}"


def update_readme(readme: Path, text: str, marks: tuple[str, str]) -> None:
    """Put `text` between the two marks. ValueError if they are missing."""
    before, _, rest = readme.read_text().partition(marks[0])
    _, mark, after = rest.partition(marks[1])
    if not mark:
        raise ValueError(f"{readme} lacks the marks {marks[0]} and {marks[1]}")
    readme.write_text(f"{before}{marks[0]}\n{text}{marks[1]}{after}")


def names_among(known: Sequence[str]) -> type[list[str]]:
    """An argument type: some of `known`, separated by commas."""

    class Names(list[str]):
        def __init__(self, text: str) -> None:
            super().__init__(text.split(","))
            unknown = sorted(set(self) - set(known))
            if unknown:
                raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not among {', '.join(known)}")

    return Names


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number
