"""Measure SageMaker's container, print two tables and write them to bench/results/<date>-<cpu>-sagemaker.*.

    python -m bench sagemaker                                  all of it, about 7 minutes
    python -m bench sagemaker --only csv,multi-model
    make bench BENCH_ARGS='sagemaker --only invocations --rounds 20'

The cases:

    invocations  /invocations beside plain v2 infer: one process, one model, by turns (needs wrk)
    csv          1,000 rows of 30 features: this project's reader beside numpy's
    multi-model  200 models loaded, invoked and unloaded one after another, twice
    ping         /ping while 64 connections invoke (needs wrk)

A run of only some cases has its own files.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from bench import wrk
from bench.results import Figures, Publication, add_publication_arguments, names_among, positive
from bench.sagemaker.csv import measure_csv
from bench.sagemaker.invocations import measure_invocations
from bench.sagemaker.multi_model import measure_multi_model
from bench.sagemaker.ping import measure_ping
from tests.project import ROOT

CASES = ("invocations", "csv", "multi-model", "ping")
NEED_WRK = {"invocations", "ping"}
BUILD = ROOT / "build" / "bench" / "sagemaker"
CONDITIONS = "Server and clients share the cores."


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench sagemaker",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", type=names_among(CASES), default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--rounds", type=positive, default=400, help="invocations: pairs of turns; the median counts")
    parser.add_argument("--turn", type=float, default=0.1, help="invocations: seconds of each turn")
    parser.add_argument("--seconds", type=positive, default=60, help="ping: seconds of load")
    parser.add_argument("--models", type=positive, default=200, help="multi-model: how many")
    add_publication_arguments(parser)
    return parser.parse_args(arguments)


def measure(options: argparse.Namespace, results: Figures) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    if "invocations" in options.only:
        measure_invocations(results, BUILD, rounds=options.rounds, seconds=options.turn)
    if "csv" in options.only:
        measure_csv(results)
    if "multi-model" in options.only:
        measure_multi_model(results, BUILD, models=options.models)
    if "ping" in options.only:
        measure_ping(results, BUILD, seconds=options.seconds)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    if NEED_WRK & set(options.only):
        wrk.require_or_exit()
    command = shlex.join(["python", "-m", "bench", "sagemaker", *arguments])
    publication = Publication(options)
    results = Figures(command, CONDITIONS)
    measure(options, results)
    part = "" if set(options.only) == set(CASES) else "-" + "-".join(options.only)
    results.publish(publication, f"-sagemaker{part}")
