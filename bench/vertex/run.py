"""The figures of Vertex AI's container, printed as two tables and written to bench/results/<date>-<cpu>-vertex.*.

    python -m bench vertex                      all of it, about 7 minutes
    python -m bench vertex --only predict --rounds 20
    make bench BENCH_ARGS='vertex --only raw'

The cases:

    predict   1,000 instances of 30 features beside the same numbers as one v2 JSON tensor, and beside a Flask handler
    raw       rawPredict with binary tensors beside plain v2 infer: one process, one model, by turns
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import machine, wrk
from bench.arguments import names_among, positive
from bench.figures import RepositoryResults
from bench.vertex.cases import measure_predict, measure_raw

CASES = {"predict": measure_predict, "raw": measure_raw}
ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "bench" / "vertex"
RESULTS = ROOT / "bench" / "results"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench vertex", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_among(tuple(CASES)), default=list(CASES), help=", ".join(CASES))
    parser.add_argument(
        "--rounds", type=positive, default=400, help="pairs of turns; the median of their ratios counts"
    )
    parser.add_argument("--turn", type=float, default=0.1, help="seconds of each turn")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the two result files")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    try:
        wrk.require_wrk()
    except wrk.WrkMissing as missing:
        raise SystemExit(str(missing)) from None
    BUILD.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["python", "-m", "bench", "vertex", *arguments])
    conditions = f"Servers and wrk share the cores. Load average when it began: {os.getloadavg()[0]:.2f}."
    results = RepositoryResults(datetime.date.today().isoformat(), machine.describe(), command, conditions=conditions)
    for name in options.only:
        print(f"{name}: begins", file=sys.stderr, flush=True)
        CASES[name](results, BUILD, options.rounds, options.turn)
    options.results.mkdir(parents=True, exist_ok=True)
    part = "" if set(options.only) == set(CASES) else "-" + "-".join(options.only)
    stem = options.results / f"{results.date}-{machine.slug()}-vertex{part}"
    stem.with_name(f"{stem.name}.json").write_text(results.to_json())
    stem.with_name(f"{stem.name}.md").write_text(results.markdown())
    print(f"wrote {stem}.json and .md", file=sys.stderr)
    print(results.markdown())
