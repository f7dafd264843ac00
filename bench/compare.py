"""Compare this checkout with another one: both servers run at the same time and are asked in turns.

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
import json
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench import machine
from bench.cases import ADD_SUB, CASES, Case
from bench.clients import BUILD, require_wrk
from bench.loads import grpc, infer
from bench.machine import LoadWatch, MachineLoad
from bench.models import python_models, repositories
from bench.results import (
    COMPARISON_HEADER,
    RESULTS,
    Comparison,
    Publication,
    Ratio,
    add_publication_arguments,
    geometric_mean,
    names_among,
    number,
    positive,
    table,
    update_readme,
)
from bench.runner import Ask, compare
from bench.servers.server import GRPC, Server, trident
from tests.project import ROOT

FOLDER = BUILD / "compare"
THIS, OTHER = "this", "other"
SMALL = (1, 16, 64)
UNARY = replace(ADD_SUB, key="grpc", title="add/sub of 16 integers, ModelInfer")
STREAM = replace(ADD_SUB, key="grpc-stream", title="add/sub of 16 integers, ModelStreamInfer")
PYTHON = replace(ADD_SUB, key="python", title="add/sub of 16 integers, Python model")
_ASKS: dict[str, Ask] = {case.key: infer(case) for case in CASES} | {
    UNARY.key: grpc(UNARY),
    STREAM.key: grpc(STREAM, streams=True),
}
# The images wait long for each other: with more connections, a turn would hold little besides its ends.
CONNECTIONS: dict[str, tuple[int, ...]] = {
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
# What the commit that was measured beside Triton did not have: the case, what is asked, and Triton's figure for it.
SINCE: tuple[tuple[Case, Ask, str], ...] = (
    (UNARY, grpc(UNARY), "Triton over gRPC, raw client"),
    (PYTHON, infer(PYTHON, model=python_models.ADD_SUB), "Triton's Python backend"),
)


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
_SINCE_HEADER = ["case", "connections", "requests/s, Triton", "over Triton's, now"]

Cell = tuple[str, int]
"""The title of a case, and the number of connections."""


@dataclass(frozen=True, slots=True)
class BesideTriton:
    """A run beside Triton, with its page and the commit that was measured. Ratios are Trident's over Triton's.

    `since` has Triton's requests/s of what the commit did not have, and `then` the commit's own requests/s.
    """

    page: Path
    commit: str
    triton: Mapping[Cell, float]
    rates: Mapping[Cell, float]
    cpu: Mapping[Cell, float]
    then: Mapping[Cell, float]
    since: Mapping[Cell, float]

    @classmethod
    def newest(cls, folder: Path) -> BesideTriton:
        """The last run whose files lie in `folder`. IndexError if there is none."""
        file = sorted(folder.glob("*-beside-triton.json"))[-1]
        document = json.loads(file.read_text())

        def values(what: str) -> dict[Cell, float]:
            found = [figure for figure in document["figures"] if figure["what"] == what]
            return {_cell(figure["case"]): figure["values"][0] for figure in found}

        return cls(
            file.with_suffix(".md"),
            document["commit"],
            values("requests/s; Triton"),
            values("requests/s over Triton's"),
            values("CPU per request over Triton's"),
            values("requests/s; Trident"),
            {
                (case.title, connections): rate
                for case, _, triton in SINCE
                for (_, connections), rate in values(f"requests/s; {triton}").items()
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


def _cell(case: str) -> Cell:
    title, _, connections = case.rpartition(", ")
    return title, int(connections.split()[0])


@dataclass(frozen=True, slots=True)
class Gain:
    """What one cell has gained since: requests/s and CPU per request over those of the commit."""

    case: str
    connections: int
    rate: Ratio
    cpu: Ratio

    @classmethod
    def of(cls, row: Comparison) -> Gain:
        return cls(row.title, row.connections, row.rate_ratio(THIS), row.cpu_ratio(THIS))


def readme_text(run: BesideTriton, gains: Iterable[Gain], page: str) -> str:
    """The table and its means. `page` is the path of the page with the gains. Cells without a Triton are left out."""
    rows, rates, cpu = [], [], []
    for gain in gains:
        cell = (gain.case, gain.connections)
        if cell not in run.rates:
            continue
        rates.append(run.rates[cell] * gain.rate.median)
        cpu.append(run.cpu[cell] * gain.cpu.median)
        ratios = (run.rates[cell], gain.rate.median, rates[-1], cpu[-1])
        rows.append([gain.case, str(gain.connections), number(run.triton[cell]), *(f"{each:.2f}" for each in ratios)])
    return (
        f"{table(_HEADER, rows)}\n\n"
        f"Geometric means: {geometric_mean(rates):.2f} times Triton's requests/s, {geometric_mean(cpu):.2f} of its CPU "
        f'time for a request. "Then" is {run.commit}, measured [beside Triton](bench/results/{run.page.name}); '
        f'"gained since" is measured [beside that commit]({page}), in turns of a fraction of a second; "now" is their '
        "product, not a new measurement. The CNN has a queue delay of 500 µs, which ends early "
        "[when every client waits](docs/tuning.md#when-every-client-waits).\n"
    )


def since_text(run: BesideTriton, gains: Iterable[Gain]) -> str:
    """The table of what the commit did not have. A gain is over the commit's binary HTTP there."""
    rows = []
    for gain in gains:
        triton = run.since.get((gain.case, gain.connections))
        if triton is not None:
            now = gain.rate.median * run.then[ADD_SUB.title, gain.connections] / triton
            rows.append([gain.case, str(gain.connections), number(triton), f"{now:.2f}"])
    if not rows:
        return ""
    return (
        f"{table(_SINCE_HEADER, rows)}\n\n"
        f"{run.commit} had neither gRPC nor Python models. These cells are measured beside its add/sub as binary "
        "HTTP, in turns, and that was measured beside Triton's gRPC and Python models in one run. The client over gRPC "
        "is `bench/grpc_client.c`; the one that asked Triton was another.\n"
    )


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, help="the folder of the other checkout")
    parser.add_argument("--only", type=names_among(tuple(CONNECTIONS)), default=list(CONNECTIONS), help="cases")
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
        if not (folder / "app").is_dir() and not (folder / "trident" / "app").is_dir():
            parser.error(f"{folder} is not a checkout of this project: it has no folder app")
    return options


def rows(options: argparse.Namespace, servers: dict[str, Server]) -> Iterator[Comparison]:
    """Each case that was asked for, of both servers."""
    for case in (*CASES, UNARY, STREAM):
        if case.key not in options.only:
            continue
        with ExitStack() as stack:
            loads = {name: stack.enter_context(_ASKS[case.key](servers[name])) for name in (THIS, OTHER)}
            for connections in CONNECTIONS[case.key]:
                if not options.connections or str(connections) in options.connections:
                    seconds = options.turn * case.stretch
                    yield compare(case.title, loads, connections=connections, pairs=options.pairs, seconds=seconds)


def rows_since(options: argparse.Namespace, servers: dict[str, Server]) -> Iterator[Comparison]:
    """This checkout is asked for what the other one does not have, and that one as it was beside Triton."""
    for case, ask, _ in SINCE:
        with ask(servers[THIS]) as this, infer(ADD_SUB)(servers[OTHER]) as other:
            loads = {THIS: this, OTHER: other}
            for connections in SMALL:
                yield compare(case.title, loads, connections=connections, pairs=options.pairs, seconds=options.turn)


def markdown(
    found: Sequence[Comparison], load: MachineLoad, options: argparse.Namespace, since: Sequence[Comparison] = ()
) -> str:
    rates, cpu = ([getattr(row, name)(THIS).median for row in found] for name in ("rate_ratio", "cpu_ratio"))
    means = f"requests/s {geometric_mean(rates):.3f}, CPU per request {geometric_mean(cpu):.3f}"
    parts = [
        table(COMPARISON_HEADER, [cells for row in found for cells in row.cells()]),
        f"Geometric means of the ratios: {means}. Each row: {options.pairs} pairs of turns of {options.turn:g} s.",
    ]
    if since:
        parts.append(f"The other one is asked for {ADD_SUB.title}, over HTTP:")
        parts.append(table(COMPARISON_HEADER, [cells for row in since for cells in row.cells()]))
    return "\n\n".join([*parts, f"Meanwhile {load.text()}."])


def measure(options: argparse.Namespace) -> tuple[list[Comparison], list[Comparison]]:
    """Start both servers and ask them in turns: the cases, and with `--beside-triton` what is new since."""
    models = FOLDER / "models"
    repositories.build(models, queue_delay_us=options.queue_delay)
    own: dict[str, list[str]] = {OTHER: [], THIS: []}
    if options.beside_triton:
        shutil.rmtree(new_models := FOLDER / "python", ignore_errors=True)
        python_models.build_one(new_models)
        own[THIS] = [f"--model-repository={new_models}"]
    with ExitStack() as stack:
        servers = {}
        for name, checkout in ((OTHER, options.other.resolve()), (THIS, options.this.resolve())):
            server = trident(models, FOLDER / f"{name}.log", *GRPC, name=name, checkout=checkout)
            server.command += [*own[name], *options.options]
            servers[name] = stack.enter_context(server)
        return list(rows(options, servers)), list(rows_since(options, servers)) if options.beside_triton else []


def publish(
    run: BesideTriton,
    found: Sequence[Comparison],
    since: Sequence[Comparison],
    options: argparse.Namespace,
    publication: Publication,
    command: str,
) -> None:
    """Write the results, and the table beside Triton into README if the machine was quiet."""
    load, about = publication.load(), machine.describe()
    gains = [Gain.of(row) for row in (*found, *since)]
    document = {
        "date": machine.today(),
        "machine": about,
        "command": command,
        "other": run.commit,
        "rows": [asdict(gain) | {"case": {"title": gain.case}} for gain in gains],
    }
    text = (
        f"{document['date']}: {about['cpu']}, {about['cores']} cores, {about['memory_gb']} GB, "
        f"Python {about['python']}. The other checkout is {run.commit}. Run again with `{command}`.\n\n"
        f"{markdown(found, load, options, since)}\n"
    )
    page = publication.write("-since-triton", json.dumps(document, indent=1) + "\n", text, load)
    if publication.is_public(load):
        text = readme_text(run, gains, str(page.resolve().relative_to(ROOT)))
        update_readme(ROOT / "README.md", f"{text}\n{since_text(run, gains)}", MARKS)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    require_wrk()
    if not options.beside_triton:
        watch = LoadWatch()
        found, _ = measure(options)
        print(markdown(found, watch.load(), options))
        return
    run = BesideTriton.newest(RESULTS)
    run.check(options.other)
    measured = {title for title, _ in run.rates}
    options.only = [case.key for case in CASES if case.key in options.only and case.title in measured]
    publication = Publication(options)
    command = shlex.join(["python", "-m", "bench", "compare", *arguments])
    publish(run, *measure(options), options, publication, command)
