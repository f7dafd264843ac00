"""Compare this checkout with another one: both servers run at the same time and are asked in turns.

    python -m bench compare ../before                               all rows, about 14 minutes
    python -m bench compare ../before --only a-json,a-binary --connections 16 --pairs 200
    python -m bench compare ../before --options=--http-workers=1
    python -m bench compare ../before --only a-binary,d-binary --queue-delay 500
    python -m bench compare . --this build/compiled                 the compiled build beside the pure one
    python -m bench compare . --this build/compiled --only grpc,grpc-stream

A turn is a fraction of a second, in which one server is asked and the other one idles. A ratio is this checkout's
figure over the other's: the median of the pairs' ratios, with the 95 % interval of that median in brackets. More
requests/s and less CPU per request are better. The other checkout runs in its own .venv, or in this one if it has none.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.cases import ADD_SUB, CASES
from bench.clients import BUILD
from bench.loads import grpc, infer
from bench.machine import LoadWatch, MachineLoad
from bench.models import repositories
from bench.results import (
    COMPARISON_HEADER,
    Comparison,
    geometric_mean,
    names_among,
    positive,
    table,
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


def markdown(found: Sequence[Comparison], load: MachineLoad, options: argparse.Namespace) -> str:
    rates, cpu = ([getattr(row, name)(THIS).median for row in found] for name in ("rate_ratio", "cpu_ratio"))
    means = f"requests/s {geometric_mean(rates):.3f}, CPU per request {geometric_mean(cpu):.3f}"
    parts = [
        table(COMPARISON_HEADER, [cells for row in found for cells in row.cells()]),
        f"Geometric means of the ratios: {means}. Each row: {options.pairs} pairs of turns of {options.turn:g} s.",
    ]
    return "\n\n".join([*parts, f"Meanwhile {load.text()}."])


def measure(options: argparse.Namespace) -> list[Comparison]:
    """Start both servers and ask them in turns."""
    models = FOLDER / "models"
    repositories.build(models, queue_delay_us=options.queue_delay)
    with ExitStack() as stack:
        servers = {}
        for name, checkout in ((OTHER, options.other.resolve()), (THIS, options.this.resolve())):
            server = trident(models, FOLDER / f"{name}.log", *GRPC, name=name, checkout=checkout)
            server.command += options.options
            servers[name] = stack.enter_context(server)
        return list(rows(options, servers))


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    watch = LoadWatch()
    found = measure(options)
    print(markdown(found, watch.load(), options))
