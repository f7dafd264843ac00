"""The figures of the model repository, printed as two tables and written to bench/results/<date>-<cpu>-repository.*.

    python -m bench repository                                        all of it, about 20 minutes, 4 GB of disk
    python -m bench repository --only start --megabytes 64 --rounds 1
    make bench BENCH_ARGS='repository --only load --seconds 60'

The cases:

    start    a big model from an emulator of S3: the first start and the second
    many     a thousand small models in a local repository: index and load
    load     load, unload and reload while 64 connections ask (needs wrk)
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import machine, wrk
from bench.arguments import names_among, positive
from bench.figures import RepositoryResults
from bench.repository.load import measure_load
from bench.repository.many import FEW, measure_many
from bench.repository.start import EMULATORS, measure_start

CASES = ("start", "many", "load")
ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "bench" / "repository"
RESULTS = ROOT / "bench" / "results"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench repository",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", type=names_among(CASES), default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--rounds", type=positive, default=3, help="rounds of start and load; the median counts")
    parser.add_argument("--megabytes", type=positive, default=1024, help="start: weights of the model, MB of 2**20")
    parser.add_argument(
        "--emulators", type=names_among(list(EMULATORS)), default=list(EMULATORS), help=f"start: {', '.join(EMULATORS)}"
    )
    parser.add_argument("--models", type=positive, default=1000, help=f"many: models in the repository, {FEW} or more")
    parser.add_argument("--loaded", type=positive, default=300, help="many: how many are loaded in the crowded server")
    parser.add_argument("--repeats", type=positive, default=20, help="many: times that each request is made")
    parser.add_argument("--seconds", type=positive, default=60, help="load: seconds of each of its three parts")
    parser.add_argument("--connections", type=positive, default=64, help="load: connections of wrk")
    parser.add_argument("--pause", type=float, default=0.2, help="load: seconds between two changes")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the two result files")
    options = parser.parse_args(arguments)
    if options.models < FEW:
        parser.error(f"--models must be {FEW} or more")
    return options


def measure(options: argparse.Namespace, results: RepositoryResults) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    if "start" in options.only:
        for kind in options.emulators:
            measure_start(results, BUILD, kind=kind, megabytes=options.megabytes, rounds=options.rounds)
    if "many" in options.only:
        measure_many(results, BUILD, models=options.models, loaded=options.loaded, repeats=options.repeats)
    if "load" in options.only:
        measure_load(
            results,
            BUILD,
            connections=options.connections,
            seconds=options.seconds,
            pause=options.pause,
            rounds=options.rounds,
        )


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    if "load" in options.only:
        try:
            wrk.require_wrk()
        except wrk.WrkMissing as missing:
            raise SystemExit(str(missing)) from None
    command = shlex.join(["python", "-m", "bench", "repository", *arguments])
    results = RepositoryResults(datetime.date.today().isoformat(), machine.describe(), command)
    measure(options, results)
    options.results.mkdir(parents=True, exist_ok=True)
    stem = options.results / f"{results.date}-{machine.slug()}-repository"
    stem.with_name(f"{stem.name}.json").write_text(results.to_json())
    stem.with_name(f"{stem.name}.md").write_text(results.markdown())
    print(f"wrote {stem}.json and .md", file=sys.stderr)
    print(results.markdown())
