"""The slowest requests of this checkout, or of others beside it, and the longest pause of the garbage collector.

    python -m bench tails                                    about 3 minutes
    python -m bench tails --only quiet,scrapes --rounds 10
    python -m bench tails --checkouts ../before,.            two checkouts by turns
    python -m bench tails --only quiet --cases a-json,a-binary,cnn-json,cnn-binary --connections 1,16,64

Add/sub of 16 integers as JSON, or other cases, in one process that has 1 GB of models besides. `cnn` is a classifier of
digits of 28x28 with at most 32 in a batch and a queue delay of 500 µs. The conditions take turns; a figure is
the median of the rounds. The pause is the longest of all rounds:

    quiet      nothing else is asked
    scrapes    the page of metrics every 100 ms
    probes     live and ready, each every 20 ms
    reloads    a model of 100 MB is loaded again and again
    idle       10,000 connections that have asked once are open
    broken     a JSON tensor of 16 MB that is not UTF-8 is refused, five times a second at most
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path

from bench import wrk
from bench.cases import CASES, Case
from bench.machine import LoadWatch
from bench.models import served
from bench.results import names_among, number, positive, table
from bench.servers.server import Server
from bench.tails.conditions import CONDITIONS, COPIES, LARGE, build_large
from bench.tails.watched import collections
from tests.contract.servers.ports import HOST
from tests.project import ROOT

BUILD = ROOT / "build" / "bench" / "tails"
DELAYED = "digits_cnn"
_DIGIT = (("INPUT", "FP32", (1, 28, 28)),)
_DELAYED = [
    Case(f"cnn-{name}", "28x28 digit classifier, 500 µs", DELAYED, _DIGIT, ("OUTPUT",), binary=name == "binary")
    for name in ("json", "binary")
]
TAIL_CASES = {case.key: case for case in (*CASES, *_DELAYED) if case.letter in ("a", "cnn")}


def watched_server(checkout: Path, repository: Path, name: str, pauses: Path) -> Server:
    command = [
        sys.executable,
        str(ROOT / "bench" / "tails" / "watched.py"),
        str(pauses),
        "serve",
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        "--load-model=simple",
        f"--load-model={DELAYED}",
        *(f"--load-model={LARGE}_{index}" for index in range(COPIES)),
        "--http-workers=0",
        f"--http-address={HOST}",
        "--http-port={port}",
        "--metrics-port={spare_port}",
        "--allow-grpc=false",
    ]
    return Server(name, command, BUILD / f"{name}.log", {"PYTHONPATH": str(checkout)}, folder=checkout)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench tails", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_among(tuple(CONDITIONS)), default=list(CONDITIONS), help="conditions")
    parser.add_argument("--checkouts", default=str(ROOT), help="folders of checkouts, separated by commas")
    parser.add_argument("--cases", type=names_among(tuple(TAIL_CASES)), default=["a-json"], help="what is asked")
    parser.add_argument("--connections", type=names_among(("1", "16", "64")), default=["16", "64"])
    parser.add_argument("--rounds", type=positive, default=5, help="rounds of each cell; the median counts")
    parser.add_argument("--seconds", type=positive, default=3, help="of a round")
    options = parser.parse_args(arguments)
    wrk.require_or_exit()
    models = BUILD / "models"
    BUILD.mkdir(parents=True, exist_ok=True)
    served.build(models)
    shutil.copytree(ROOT / "tests" / "golden" / "models" / DELAYED, models / DELAYED, dirs_exist_ok=True)
    build_large(models)
    cases = [TAIL_CASES[key] for key in options.cases]
    scripts = {case.key: wrk.write_script(BUILD / f"{case.key}.lua", *case.body()) for case in cases}
    loads: dict[tuple[str, str, str, str], list[wrk.Load]] = defaultdict(list)
    longest: dict[tuple[str, str, str, str], float] = defaultdict(float)
    watch = LoadWatch()
    with ExitStack() as stack:
        servers: dict[str, tuple[Server, Path]] = {}
        for index, checkout in enumerate(options.checkouts.split(",")):
            pauses = BUILD / f"{index}.pauses"
            pauses.unlink(missing_ok=True)
            server = watched_server(Path(checkout).resolve(), models, str(index), pauses)
            servers[checkout] = (stack.enter_context(server), pauses)
            for case in cases:
                wrk.run(server.url(case.path), scripts[case.key], connections=16, seconds=1)
        for _ in range(options.rounds):
            for condition in options.only:
                for checkout, (server, pauses) in servers.items():
                    before = len(collections(pauses))
                    with CONDITIONS[condition](server, models):
                        for case, connections in product(cases, options.connections):
                            key = (checkout, condition, case.key, connections)
                            url, script = server.url(case.path), scripts[case.key]
                            load = wrk.run(url, script, connections=int(connections), seconds=options.seconds)
                            loads[key].append(load)
                            took = [each.took_us for each in collections(pauses)[before:]]
                            longest[key] = max([longest[key], *took])
    rows = []
    for key, found in loads.items():
        times = [[getattr(load, field) for load in found] for field in ("p50_ms", "p99_ms", "p999_ms")]
        rate = statistics.median(load.requests / load.seconds for load in found)
        errors = sum(load.errors for load in found)
        medians = [number(statistics.median(values)) for values in times]
        rows.append([*key, number(rate), *medians, number(longest[key] / 1000), str(errors)])
    header = [
        "checkout",
        "condition",
        "case",
        "connections",
        "requests/s",
        "p50, ms",
        "p99",
        "p99.9",
        "pause, ms",
        "errors",
    ]
    print(table(header, rows))
    print(f"\n{options.rounds} rounds of {options.seconds} s. Meanwhile {watch.seen().text()}.")
