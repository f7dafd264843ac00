"""Large tensors over HTTP beside the floor: a bare loop that receives them into one buffer, runs the model, and sends.

    python -m bench large                              about a minute
    python -m bench large --only 16MB --pairs 10 --options=--http-workers=2

Both servers run at the same time and are asked by turns of a fraction of a second. A ratio is the server's figure over
the floor's: the median of the pairs' ratios, with the 95 % interval of that median in brackets. The floor reuses its
memory, copies nothing, and checks nothing: what it costs is the kernel's copy in and out, and the model's own copy.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from collections.abc import Sequence

from bench import wrk
from bench.cases import CASES as MODEL_CASES
from bench.machine import LoadWatch
from bench.models import served
from bench.plain import check_answer
from bench.results import names_among, number, positive, table
from bench.servers.server import socket_loop, trident
from bench.shared_memory import LARGE
from bench.turns import HttpLoad, Ratio, Turns
from tests.project import ROOT

BUILD = ROOT / "build" / "bench" / "large"
SERVER, FLOOR = "trident", "floor"
# By name: the case, its numbers of connections, and how much longer its turns are.
CASES = {
    "600KB": (next(case for case in MODEL_CASES if case.key == "b"), (1, 16, 64), 1),
    "16MB": (LARGE, (1, 4), 4),
}
_HEADER = ["case", "connections", "requests/s, floor", "server", "ratio", "CPU µs/request, floor", "server", "ratio"]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench large", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_among(tuple(CASES)), default=list(CASES), help="cases")
    parser.add_argument("--pairs", type=positive, default=30, help="pairs of turns of each row")
    parser.add_argument("--turn", type=float, default=0.25, help="seconds of a turn; 16 MB take four times as long")
    parser.add_argument("--options", type=shlex.split, default=[], help="options for the server, in one text")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    wrk.require_or_exit()
    models = BUILD / "models"
    served.build(models)
    server, floor = trident(models, BUILD / "server.log"), socket_loop(models, BUILD / "floor.log")
    server.command += options.options
    watch = LoadWatch()
    rows: list[list[str]] = []
    with server, floor:
        for name in options.only:
            case, numbers, stretch = CASES[name]
            check_answer(server, case, models)
            script = wrk.write_script(BUILD / f"{name}.lua", *case.body())
            loads = {
                key: HttpLoad(each, case.model, each.url(case.path), script)
                for key, each in ((FLOOR, floor), (SERVER, server))
            }
            for connections in numbers:
                with Turns(loads, connections=connections, seconds=options.turn * stretch) as turns:
                    pairs = [turns.round(index) for index in range(options.pairs)]
                if turns.errors:
                    raise SystemExit(f"{turns.errors} requests failed: {case.title}, {connections} connections")
                rates, cpu = (
                    {key: [getattr(pair[key], figure) for pair in pairs] for key in loads}
                    for figure in ("requests_per_second", "cpu_us")
                )
                cells = [case.title.removesuffix(", binary"), str(connections)]
                for figures in (rates, cpu):
                    cells += [number(statistics.median(figures[key])) for key in (FLOOR, SERVER)]
                    cells.append(str(Ratio.of(figures[SERVER], figures[FLOOR])))
                print(" | ".join(cells), file=sys.stderr, flush=True)
                rows.append(cells)
    print(table(_HEADER, rows))
    print(f"Each row: {options.pairs} pairs of turns. Meanwhile {watch.seen().text()}.")
