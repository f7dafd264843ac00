"""Compare this checkout with another one: both servers run at the same time and are asked by turns.

    python -m bench compare ../before                               all rows, about 14 minutes
    python -m bench compare ../before --only a-json,a-binary --connections 16 --pairs 200
    python -m bench compare ../before --options=--http-workers=1
    python -m bench compare ../before --only a-binary,d-binary --queue-delay 500
    python -m bench compare . --this build/compiled                 the compiled build beside the pure one
    python -m bench compare . --this build/compiled --only grpc,grpc-stream
    python -m bench compare ../e514c30 --beside-triton              README's table beside Triton

A turn is a fraction of a second, in which one server is asked and the other one idles. A ratio is this checkout's
figure over the other's: the median of the pairs' ratios, with the 95 % interval of that median in brackets. More
requests/s and less CPU per request are better. The other checkout runs in its own .venv, or in this one if it has none.

`--beside-triton` writes the figures to bench/results, and the product of the gains with Triton's ratios into README.
The other checkout must be at the commit that was measured beside Triton.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from bench import machine, wrk
from bench.cases import CASES, Case
from bench.grpc.cases import infer_message
from bench.grpc.load import GrpcLoad, write_message
from bench.grpc.servers import BothDoors
from bench.machine import LoadSeen, LoadWatch
from bench.models import served
from bench.plain import check_answer, geometric_mean
from bench.python import ADD_SUB, build_add_sub
from bench.results import (
    RESULTS,
    Publication,
    add_publication_arguments,
    names_among,
    number,
    positive,
    table,
    update_readme,
)
from bench.turns import HttpLoad, Load, Ratio, Turn, Turns
from tests.project import ROOT

THEN = next(case for case in CASES if case.key == "a-binary")
"""What the commit of then is asked."""


@dataclass(frozen=True, slots=True)
class Door:
    """What this checkout is asked; `triton` is the name of Triton's figure for the same."""

    case: Case
    triton: str


GRPC_CASES = (
    replace(THEN, key="grpc", title="add/sub of 16 integers, ModelInfer"),
    replace(THEN, key="grpc-stream", title="add/sub of 16 integers, ModelStreamInfer"),
)
DOORS = (
    Door(GRPC_CASES[0], "Triton over gRPC, raw client"),
    Door(
        replace(THEN, key="python", title="add/sub of 16 integers, Python model", model=ADD_SUB),
        "Triton's Python backend",
    ),
)
CONNECTIONS = (1, 16, 64)


# Triton does not run on every machine, and figures of different runs do not compare. So both this checkout and Triton
# are compared with the same commit, each in a run of its own.


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


THIS, OTHER = "this", "other"
BUILD = ROOT / "build" / "bench" / "compare"
HEADER = [
    "case",
    "connections",
    "requests/s, other",
    "this",
    "ratio",
    "CPU µs/request, other",
    "this",
    "ratio",
    "errors",
]
SMALL = (1, 16, 64)
# The images wait long for each other: with more connections, a turn would hold little besides its ends.
DEFAULT_CONNECTIONS: dict[str, tuple[int, ...]] = {
    "a-json": SMALL,
    "a-binary": SMALL,
    "b": SMALL,
    "d-json": (16, 64),
    "d-binary": (16, 64),
    "f-json": SMALL,
    "f-binary": SMALL,
    "c-mean": (4,),
    "c-echo": (1, 4, 16, 64),
    "grpc": SMALL,
    "grpc-stream": (16, 64),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One case at one number of connections: the medians of both servers, and their ratios."""

    case: Case
    connections: int
    rates: dict[str, float]
    cpu_us: dict[str, float]
    rate: Ratio
    cpu: Ratio
    errors: int

    @classmethod
    def of(cls, case: Case, connections: int, pairs: Sequence[dict[str, Turn]], errors: int) -> Row:
        rates = {name: [pair[name].requests_per_second for pair in pairs] for name in (THIS, OTHER)}
        cpu = {name: [pair[name].cpu_us for pair in pairs] for name in (THIS, OTHER)}
        return cls(
            case,
            connections,
            {name: statistics.median(values) for name, values in rates.items()},
            {name: statistics.median(values) for name, values in cpu.items()},
            Ratio.of(rates[THIS], rates[OTHER]),
            Ratio.of(cpu[THIS], cpu[OTHER]),
            errors,
        )

    def cells(self) -> list[str]:
        return [
            self.case.title,
            str(self.connections),
            number(self.rates[OTHER]),
            number(self.rates[THIS]),
            str(self.rate),
            number(self.cpu_us[OTHER]),
            number(self.cpu_us[THIS]),
            str(self.cpu),
            str(self.errors),
        ]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, help="the folder of the other checkout")
    parser.add_argument(
        "--only", type=names_among(tuple(DEFAULT_CONNECTIONS)), default=list(DEFAULT_CONNECTIONS), help="cases"
    )
    parser.add_argument(
        "--connections", type=names_among(("1", "4", "16", "64")), help="of the cases' own numbers, only these"
    )
    parser.add_argument("--pairs", type=positive, default=60, help="pairs of turns of each row")
    parser.add_argument("--turn", type=float, default=0.25, help="seconds of a turn; images take twice as long")
    parser.add_argument("--options", type=shlex.split, default=[], help="options for both servers, in one text")
    parser.add_argument("--queue-delay", type=int, default=0, help="microseconds that the small models' batches wait")
    parser.add_argument("--this", type=Path, default=ROOT, help="another folder in place of this checkout")
    parser.add_argument(
        "--beside-triton", action="store_true", help="write the results, and README's table with Triton"
    )
    add_publication_arguments(parser)
    options = parser.parse_args(arguments)
    for folder in (options.other, options.this):
        if not (folder / "app").is_dir():
            parser.error(f"{folder} is not a checkout of this project: it has no folder app")
    return options


def load_of(server: BothDoors, case: Case) -> Load:
    if case in GRPC_CASES:
        message = write_message(BUILD / f"{case.key}.grpc", infer_message(case))
        return GrpcLoad(server, case.model, server.grpc_port, message, streams=case.key == "grpc-stream")
    script = wrk.write_script(BUILD / f"{case.key}.lua", *case.body())
    return HttpLoad(server, case.model, server.url(case.path), script)


def rows(options: argparse.Namespace, servers: dict[str, BothDoors], models: Path) -> Iterator[Row]:
    for case in (*CASES, *GRPC_CASES):
        if case.key not in options.only:
            continue
        for server in servers.values():
            check_answer(server, case, models)
        loads = {name: load_of(server, case) for name, server in servers.items()}
        for connections in DEFAULT_CONNECTIONS[case.key]:
            if options.connections and str(connections) not in options.connections:
                continue
            with Turns(loads, connections=connections, seconds=options.turn * case.stretch) as turns:
                pairs = [turns.round(index) for index in range(options.pairs)]
            yield Row.of(case, connections, pairs, turns.errors)


def door_rows(options: argparse.Namespace, servers: dict[str, BothDoors], models: Path) -> Iterator[Row]:
    """This checkout is asked through each door, the other one always as it was beside Triton."""
    for door in DOORS:
        check_answer(servers[THIS], door.case, models, graph=THEN.model)
        loads = {THIS: load_of(servers[THIS], door.case), OTHER: load_of(servers[OTHER], THEN)}
        for connections in CONNECTIONS:
            with Turns(loads, connections=connections, seconds=options.turn) as turns:
                pairs = [turns.round(index) for index in range(options.pairs)]
            yield Row.of(door.case, connections, pairs, turns.errors)


def markdown(found: Sequence[Row], seen: LoadSeen, options: argparse.Namespace, doors: Sequence[Row] = ()) -> str:
    rates, cpu = ([getattr(row, name).median for row in found] for name in ("rate", "cpu"))
    means = f"requests/s {geometric_mean(rates):.3f}, CPU per request {geometric_mean(cpu):.3f}"
    return "\n\n".join(
        [
            table(HEADER, [row.cells() for row in found]),
            f"Geometric means of the ratios: {means}. Each row: {options.pairs} pairs of turns of {options.turn:g} s.",
            *_door_table(doors),
            f"Meanwhile {seen.text()}.",
        ]
    )


def _door_table(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    return [f"The other one is asked for {THEN.title}, over HTTP:", table(HEADER, [row.cells() for row in rows])]


def compare(options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """Start both servers and ask them by turns: the cases, and with `--beside-triton` the doors.

    The rows are printed as they come.
    """
    models = BUILD / "models"
    BUILD.mkdir(parents=True, exist_ok=True)
    served.build(models, queue_delay_us=options.queue_delay)
    own: dict[str, list[str]] = {OTHER: [], THIS: []}
    if options.beside_triton:
        shutil.rmtree(python_models := BUILD / "python", ignore_errors=True)
        build_add_sub(python_models)
        own[THIS] = [f"--model-repository={python_models}"]
    found: list[Row] = []
    doors: list[Row] = []
    with ExitStack() as stack:
        servers = {}
        for name, checkout in ((OTHER, options.other.resolve()), (THIS, options.this.resolve())):
            server = BothDoors(models, BUILD / f"{name}.log", checkout=checkout)
            server.name = name
            server.command += [*own[name], *options.options]
            servers[name] = stack.enter_context(server)
        for row in rows(options, servers, models):
            found.append(_shown(row))
        if options.beside_triton:
            for row in door_rows(options, servers, models):
                doors.append(_shown(row))
    return found, doors


def _shown(row: Row) -> Row:
    print(" | ".join(row.cells()), file=sys.stderr, flush=True)
    return row


def publish(
    run: BesideTriton,
    found: Sequence[Row],
    doors: Sequence[Row],
    options: argparse.Namespace,
    publication: Publication,
    command: str,
) -> None:
    """Write the results, and the table beside Triton into README if the machine was quiet."""
    seen, about = publication.seen(), machine.describe()
    document = {"date": machine.today(), "machine": about, "command": command, "other": run.commit}
    figures = json.dumps({**document, "rows": [dataclasses.asdict(row) for row in (*found, *doors)]}, indent=1)
    text = (
        f"{document['date']}: {about['cpu']}, {about['cores']} cores, {about['memory_gb']} GB, "
        f"Python {about['python']}. The other checkout is {run.commit}. Run again with `{command}`.\n\n"
        f"{markdown(found, seen, options, doors)}\n"
    )
    page = publication.write("-since-triton", f"{figures}\n", text, seen)
    if publication.is_public(seen):
        gains = [Gain(row.case.title, row.connections, row.rate, row.cpu) for row in (*found, *doors)]
        text = readme_text(run, gains, str(page.resolve().relative_to(ROOT)))
        update_readme(ROOT / "README.md", f"{text}\n{doors_text(run, gains)}", MARKS)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    wrk.require_or_exit()
    if not options.beside_triton:
        watch = LoadWatch()
        found, _ = compare(options)
        print(markdown(found, watch.seen(), options))
        return
    run = BesideTriton.newest(RESULTS)
    run.check(options.other)
    measured = {title for title, _ in run.rates}
    options.only = [case.key for case in CASES if case.key in options.only and case.title in measured]
    publication = Publication(options)
    command = shlex.join(["python", "-m", "bench", "compare", *arguments])
    publish(run, *compare(options), options, publication, command)
