"""Compare gRPC with binary HTTP on the same server, and with a grpcio server; write bench/results/<date>-<cpu>-grpc.*.

    python -m bench grpc                             all of it, about 8 minutes
    python -m bench grpc --only unary,stream --rounds 100
    make bench BENCH_ARGS='grpc --only large'

The cases, each by turns in one run:

    unary      add/sub of 16 integers at 1, 16 and 64 connections beside binary HTTP
    channel    64 calls in flight on one connection beside 64 connections
    stream     ModelStreamInfer beside ModelInfer
    large      600 KB and 16 MB echoed beside binary HTTP
    grpcio     beside a server of the grpcio package with the same engine
    latency    p50 at one connection beside binary HTTP's
    idle       the memory of 1,000 idle connections
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from bench import wrk
from bench.grpc.cases import CASES, Bench
from bench.grpc.load import BUILD, build_or_exit
from bench.models import served
from bench.results import Figures, Publication, add_publication_arguments, names_among, positive

CONDITIONS = "Servers and clients share the cores."


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench grpc", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_among(tuple(CASES)), default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--rounds", type=positive, default=100, help="turns of each load; the median of ratios counts")
    parser.add_argument("--turn", type=float, default=0.25, help="seconds of each turn")
    add_publication_arguments(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    wrk.require_or_exit()
    build_or_exit()
    models = BUILD / "models"
    served.build(models)
    command = shlex.join(["python", "-m", "bench", "grpc", *arguments])
    publication = Publication(options)
    results = Figures(command, CONDITIONS)
    bench = Bench(results, models, BUILD, rounds=options.rounds, seconds=options.turn)
    for name in options.only:
        print(f"{name}: begins", file=sys.stderr, flush=True)
        CASES[name](bench)
    part = "" if set(options.only) == set(CASES) else "-" + "-".join(options.only)
    results.publish(publication, f"-grpc{part}")
