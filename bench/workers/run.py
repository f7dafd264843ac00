"""HTTP workers before an engine process, beside all in one process: two tables, bench/results/<date>-<cpu>-workers.*.

    python -m bench workers                             all of it, about 20 minutes
    python -m bench workers --only small,memory --rounds 5
    make bench BENCH_ARGS='workers --only json'

The cases, each by turns in one run:

    small     add/sub of 16 integers at 16 and 64 connections, 1 and 2 workers
    single    the same at one connection
    large     600 KB echoed at 16 connections, 1 worker
    json      a 3x224x224 image as JSON at 16 connections, 2 workers beside 1
    memory    what a second worker takes, and what 100,000 requests leave behind
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
from bench.models import served as repository
from bench.workers.cases import CASES, Bench

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "bench" / "workers"
RESULTS = ROOT / "bench" / "results"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench workers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_among(tuple(CASES)), default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--rounds", type=positive, default=9, help="turns of each server; the median of ratios counts")
    parser.add_argument("--seconds", type=positive, default=3, help="of each turn")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the two result files")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    try:
        wrk.require_wrk()
    except wrk.WrkMissing as missing:
        raise SystemExit(str(missing)) from None
    models = BUILD / "models"
    BUILD.mkdir(parents=True, exist_ok=True)
    repository.build(models, resnet_batch=1)
    command = shlex.join(["python", "-m", "bench", "workers", *arguments])
    conditions = f"Servers and wrk share the cores. Load average when it began: {os.getloadavg()[0]:.2f}."
    results = RepositoryResults(datetime.date.today().isoformat(), machine.describe(), command, conditions=conditions)
    bench = Bench(results, models, BUILD, rounds=options.rounds, seconds=options.seconds)
    for name in options.only:
        print(f"{name}: begins", file=sys.stderr, flush=True)
        CASES[name](bench)
    options.results.mkdir(parents=True, exist_ok=True)
    part = "" if set(options.only) == set(CASES) else "-" + "-".join(options.only)
    stem = options.results / f"{results.date}-{machine.slug()}-workers{part}"
    stem.with_name(f"{stem.name}.json").write_text(results.to_json())
    stem.with_name(f"{stem.name}.md").write_text(results.markdown())
    print(f"wrote {stem}.json and .md", file=sys.stderr)
    print(results.markdown())
