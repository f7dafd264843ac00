"""Measure models in Python beside ONNX models of the same function; write bench/results/<date>-<cpu>-python.*.

    python -m bench python                              all of it, about 3 minutes
    python -m bench python --only small,single --pairs 40
    make bench BENCH_ARGS='python --only stream'

The cases; the first three by turns of a fraction of a second, on one server:

    small     add/sub of 16 integers at 16 and 64 connections
    single    the same at one connection
    large     600 KB echoed at 1 and 16 connections
    pipe      a bare round trip through multiprocessing.Pipe
    calls     a Python model asks the ONNX model, beside an engine in the process that asks
    stream    1,000 responses of 16 bytes to one request, as events over HTTP, and how soon the first one arrives
    start     the time of a load, and the memory of the process that it starts
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from bench import wrk
from bench.arguments import names_among, positive
from bench.figures import Figures
from bench.publication import Publication, add_publication_arguments
from bench.python import models
from bench.python.cases import CASES, Bench
from bench.servers.server import trident
from tests.project import ROOT

BUILD = ROOT / "build" / "bench" / "python"
CONDITIONS = "Server, models and clients share the cores."


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench python", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_among(tuple(CASES)), default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--pairs", type=positive, default=60, help="pairs of turns; the median of their ratios counts")
    parser.add_argument("--turn", type=float, default=0.25, help="seconds of each turn")
    parser.add_argument("--http-workers", type=int, default=0, help="front ends before an engine process")
    add_publication_arguments(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    wrk.require_or_exit()
    BUILD.mkdir(parents=True, exist_ok=True)
    repository = BUILD / "models"
    models.build(repository)
    command = shlex.join(["python", "-m", "bench", "python", *arguments])
    publication = Publication(options)
    results = Figures(command, CONDITIONS)
    server = trident(repository, BUILD / "server.log")
    server.command += [
        f"--http-workers={options.http_workers}",
        "--model-control-mode=explicit",
        "--load-model=*",
    ]
    with server:
        bench = Bench(results, server, repository, BUILD, pairs=options.pairs, seconds=options.turn)
        for name in options.only:
            print(f"{name}: begins", file=sys.stderr, flush=True)
            CASES[name](bench)
    part = "" if set(options.only) == set(CASES) else "-" + "-".join(options.only)
    results.publish(publication, f"-python{part}")
