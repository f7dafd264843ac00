"""Compare HTTP workers before an engine process with one process; write bench/results/<date>-<cpu>-workers.*.

    python -m bench workers                             all of it, about 20 minutes
    python -m bench workers --only small,memory --rounds 5
    make bench BENCH_ARGS='workers --only json'

The cases, each by turns in one run:

    small     add/sub of 16 integers at 16 and 64 connections, 1 and 2 workers
    single    the same at one connection
    large     600 KB echoed at 16 connections, 1 worker
    json      a 3x224x224 image as JSON at 16 connections, 2 workers beside 1
    memory    the memory of a second worker, and the growth over 100,000 requests
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from bench import wrk
from bench.arguments import names_among, positive
from bench.figures import Figures
from bench.models import served
from bench.publication import Publication, add_publication_arguments
from bench.workers.cases import CASES, Bench
from tests.project import ROOT

BUILD = ROOT / "build" / "bench" / "workers"
CONDITIONS = "Servers and wrk share the cores."


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench workers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_among(tuple(CASES)), default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--rounds", type=positive, default=9, help="turns of each server; the median of ratios counts")
    parser.add_argument("--seconds", type=positive, default=3, help="of each turn")
    add_publication_arguments(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    wrk.require_or_exit()
    models = BUILD / "models"
    BUILD.mkdir(parents=True, exist_ok=True)
    served.build(models)
    command = shlex.join(["python", "-m", "bench", "workers", *arguments])
    publication = Publication(options)
    results = Figures(command, CONDITIONS)
    bench = Bench(results, models, BUILD, rounds=options.rounds, seconds=options.seconds)
    for name in options.only:
        print(f"{name}: begins", file=sys.stderr, flush=True)
        CASES[name](bench)
    part = "" if set(options.only) == set(CASES) else "-" + "-".join(options.only)
    results.publish(publication, f"-workers{part}")
