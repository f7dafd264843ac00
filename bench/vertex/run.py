"""Measure Vertex AI's container, print two tables and write them to bench/results/<date>-<cpu>-vertex.*.

    python -m bench vertex                      all of it, about 7 minutes
    python -m bench vertex --only predict --rounds 20
    make bench BENCH_ARGS='vertex --only raw'

The cases:

    predict   1,000 instances of 30 features beside the same numbers as one v2 JSON tensor, and beside a Flask handler
    raw       rawPredict with binary tensors beside plain v2 infer: one process, one model, by turns
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
from bench.vertex.cases import measure_predict, measure_raw
from tests.project import ROOT

CASES = {"predict": measure_predict, "raw": measure_raw}
BUILD = ROOT / "build" / "bench" / "vertex"
CONDITIONS = "Servers and wrk share the cores."


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench vertex", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_among(tuple(CASES)), default=list(CASES), help=", ".join(CASES))
    parser.add_argument(
        "--rounds", type=positive, default=400, help="pairs of turns; the median of their ratios counts"
    )
    parser.add_argument("--turn", type=float, default=0.1, help="seconds of each turn")
    add_publication_arguments(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    wrk.require_or_exit()
    BUILD.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["python", "-m", "bench", "vertex", *arguments])
    publication = Publication(options)
    results = Figures(command, CONDITIONS)
    for name in options.only:
        print(f"{name}: begins", file=sys.stderr, flush=True)
        CASES[name](results, BUILD, options.rounds, options.turn)
    part = "" if set(options.only) == set(CASES) else "-" + "-".join(options.only)
    results.publish(publication, f"-vertex{part}")
