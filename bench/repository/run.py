"""Measure the model repository, print two tables and write them to bench/results/<date>-<cpu>-repository.*.

    python -m bench repository                                        all of it, about 20 minutes, 4 GB of disk
    python -m bench repository --only start --megabytes 64 --rounds 1
    make bench BENCH_ARGS='repository --only load --seconds 60'

The cases:

    s3       a big model from an emulator of S3: the first start beside a script that downloads it and makes a session
    start    a big model from an emulator of S3: the first start and the second
    tiny     one tiny model: the time until ready, its CPU time, and the memory of all processes, with --beside in turns
             with another checkout (PYTHONDONTWRITEBYTECODE must not be set: the modules are to be compiled)
    many     a thousand small models in a local repository: index and load
    load     load, unload and reload while 64 connections send requests (needs wrk)
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from bench import wrk
from bench.repository.cold import measure_cold
from bench.repository.emulators import EMULATORS
from bench.repository.load import measure_load
from bench.repository.many import FEW, measure_many
from bench.repository.start import measure_start
from bench.repository.tiny import measure_tiny
from bench.results import Figures, Publication, add_publication_arguments, names_among, positive
from tests.project import ROOT

CASES = ("s3", "start", "tiny", "many", "load")
BUILD = ROOT / "build" / "bench" / "repository"
CONDITIONS = "Server, clients and storage emulator share the cores; ratios are of medians."


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench repository",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", type=names_among(CASES), default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--rounds", type=positive, default=3, help="rounds of s3, start and load; the median counts")
    parser.add_argument("--megabytes", type=positive, default=1024, help="s3, start: weights of the model, MB of 2**20")
    parser.add_argument(
        "--emulators",
        type=names_among(list(EMULATORS)),
        default=list(EMULATORS),
        help=f"s3, start: {', '.join(EMULATORS)}",
    )
    parser.add_argument("--starts", type=positive, default=10, help="tiny: starts of each server")
    parser.add_argument("--beside", type=Path, help="tiny, s3: another checkout, with its .venv")
    parser.add_argument("--models", type=positive, default=1000, help=f"many: models in the repository, {FEW} or more")
    parser.add_argument("--loaded", type=positive, default=300, help="many: how many are loaded in the crowded server")
    parser.add_argument("--repeats", type=positive, default=20, help="many: times that each request is made")
    parser.add_argument("--seconds", type=positive, default=60, help="load: seconds of each of its three parts")
    parser.add_argument("--connections", type=positive, default=64, help="load: connections of wrk")
    parser.add_argument("--pause", type=float, default=0.2, help="load: seconds between two changes")
    add_publication_arguments(parser)
    options = parser.parse_args(arguments)
    if options.models < FEW:
        parser.error(f"--models must be {FEW} or more")
    return options


def measure(options: argparse.Namespace, results: Figures) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    if "s3" in options.only:
        for kind in options.emulators:
            measure_cold(
                results,
                BUILD,
                kind=kind,
                megabytes=options.megabytes,
                rounds=options.rounds,
                beside=options.beside,
            )
    if "start" in options.only:
        for kind in options.emulators:
            measure_start(results, BUILD, kind=kind, megabytes=options.megabytes, rounds=options.rounds)
    if "tiny" in options.only:
        measure_tiny(results, BUILD, starts=options.starts, beside=options.beside)
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
        wrk.require_or_exit()
    command = shlex.join(["python", "-m", "bench", "repository", *arguments])
    publication = Publication(options)
    results = Figures(command, CONDITIONS)
    measure(options, results)
    results.publish(publication, "-repository")
