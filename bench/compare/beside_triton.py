"""The comparison with Triton, carried on to this checkout: the ratios measured then, times what was gained since.

Triton does not run on every machine, and figures of different runs do not compare. So both this checkout and Triton are
compared with the same commit, each in a run of its own.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.compare.doors import DOORS, THEN
from bench.plain.beside import geometric_mean
from bench.tables import number, table
from bench.turns import Ratio

MARKS = ("<!-- beside Triton: begin -->", "<!-- beside Triton: end -->")
_HEADER = [
    "case",
    "connections",
    "requests/s, Triton",
    "over Triton's, then",
    "gained since",
    "now",
    "CPU over Triton's, now",
]
_DOORS_HEADER = ["case", "connections", "requests/s, Triton", "over Triton's, now"]
_RATE, _CPU = "requests/s over Triton's", "CPU per request over Triton's"

Cell = tuple[str, int]
"""The title of a case, and the number of connections."""


@dataclass(frozen=True, slots=True)
class BesideTriton:
    """A run beside Triton, with its page and the commit that was measured. Ratios are Trident's over Triton's.

    `doors` has Triton's requests/s of what the commit did not have, and `then` the commit's own requests/s.
    """

    page: Path
    commit: str
    triton: Mapping[Cell, float]
    rates: Mapping[Cell, float]
    cpu: Mapping[Cell, float]
    then: Mapping[Cell, float]
    doors: Mapping[Cell, float]

    @classmethod
    def newest(cls, folder: Path) -> BesideTriton:
        """The last run whose files lie in `folder`. IndexError if there is none."""
        file = sorted(folder.glob("*-beside-triton.json"))[-1]
        document = json.loads(file.read_text())

        def values(what: str) -> dict[Cell, float]:
            found = [figure for figure in document["figures"] if figure["what"] == what]
            return {_cell(figure["case"]): figure["values"][0] for figure in found}

        page = file.with_suffix(".md")
        return cls(
            page,
            document["commit"],
            values("requests/s; Triton"),
            values(_RATE),
            values(_CPU),
            values("requests/s; Trident"),
            {
                (door.case.title, connections): rate
                for door in DOORS
                for (_, connections), rate in values(f"requests/s; {door.triton}").items()
            },
        )

    def check(self, checkout: Path) -> None:
        """Raise SystemExit if `checkout` is not at the commit that was measured."""
        head = subprocess.run(
            ["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
        if not head.startswith(self.commit):
            raise SystemExit(
                f"{checkout} is at {head or 'no commit'}, and Triton was measured beside {self.commit}: "
                f"git worktree add FOLDER {self.commit}"
            )


@dataclass(frozen=True, slots=True)
class Gain:
    """What one cell has gained since: requests/s and CPU per request over those of the commit."""

    case: str
    connections: int
    rate: Ratio
    cpu: Ratio


def readme_text(run: BesideTriton, gains: Iterable[Gain], page: str) -> str:
    """The table and its means. `page` is the path of the page with the gains. Cells without a Triton are left out."""
    known = [gain for gain in gains if (gain.case, gain.connections) in run.rates]
    cells = [(gain.case, gain.connections) for gain in known]
    rates = [run.rates[cell] * gain.rate.median for cell, gain in zip(cells, known, strict=True)]
    cpu = [run.cpu[cell] * gain.cpu.median for cell, gain in zip(cells, known, strict=True)]
    rows = [
        [
            case,
            str(connections),
            number(run.triton[case, connections]),
            f"{run.rates[case, connections]:.2f}",
            f"{gain.rate.median:.2f}",
            f"{rate:.2f}",
            f"{each:.2f}",
        ]
        for (case, connections), gain, rate, each in zip(cells, known, rates, cpu, strict=True)
    ]
    return (
        f"{table(_HEADER, rows)}\n\n"
        f"Geometric means: {geometric_mean(rates):.2f} times Triton's requests/s, {geometric_mean(cpu):.2f} of its CPU "
        f'time for a request. "Then" is {run.commit}, measured [beside Triton](bench/results/{run.page.name}); '
        f'"gained since" is measured [beside that commit]({page}), by turns of a fraction of a second; "now" is their '
        "product, not a new measurement. The CNN has a queue delay of 500 µs, which ends early "
        "[when every client waits](docs/tuning.md#when-every-client-waits).\n"
    )


def doors_text(run: BesideTriton, gains: Iterable[Gain]) -> str:
    """The table of the doors that the commit did not have. A gain is over the commit's binary HTTP there."""
    rows = [
        [
            gain.case,
            str(gain.connections),
            number(run.doors[gain.case, gain.connections]),
            f"{gain.rate.median * run.then[THEN.title, gain.connections] / run.doors[gain.case, gain.connections]:.2f}",
        ]
        for gain in gains
        if (gain.case, gain.connections) in run.doors
    ]
    if not rows:
        return ""
    return (
        f"{table(_DOORS_HEADER, rows)}\n\n"
        f"{run.commit} had neither gRPC nor Python models. These cells are measured beside its add/sub as binary "
        "HTTP, by turns, and that was measured beside Triton's doors in one run. The client over gRPC is "
        "`bench/grpc/load.c`; the one that asked Triton was another.\n"
    )


def _cell(case: str) -> Cell:
    title, _, connections = case.rpartition(", ")
    return title, int(connections.split()[0])
