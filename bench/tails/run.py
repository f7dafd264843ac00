"""The slowest requests of this checkout, or of others beside it, and the longest pause of the garbage collector.

    python -m bench tails                                    about 3 minutes
    python -m bench tails --only quiet,scrapes --rounds 10
    python -m bench tails --checkouts ../before,.            two checkouts by turns

Add/sub of 16 integers as JSON, in one process that has 1 GB of models besides. The conditions take turns; a figure is
the median of the rounds. The pause is the longest of all rounds:

    quiet      nothing else is asked
    scrapes    the page of metrics every 100 ms
    probes     live and ready, each every 20 ms
    reloads    a model of 100 MB is loaded again and again
    idle       10,000 connections that have asked once are open
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import wrk
from bench.arguments import names_among, positive
from bench.cases import CASES
from bench.machine_load import LoadWatch
from bench.models import served
from bench.servers.server import Server
from bench.tables import number, table
from bench.tails.conditions import CONDITIONS, COPIES, LARGE, build_large
from bench.tails.watched import collections
from tests.contract.servers.ports import HOST
from tests.project import ROOT

BUILD = ROOT / "build" / "bench" / "tails"


def watched_server(checkout: Path, repository: Path, name: str, pauses: Path) -> Server:
    command = [
        sys.executable,
        str(ROOT / "bench" / "tails" / "watched.py"),
        str(pauses),
        "serve",
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        "--load-model=simple",
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
    parser.add_argument("--connections", type=names_among(("1", "16", "64")), default=["16", "64"])
    parser.add_argument("--rounds", type=positive, default=5, help="rounds of each cell; the median counts")
    parser.add_argument("--seconds", type=positive, default=3, help="of a round")
    options = parser.parse_args(arguments)
    wrk.require_or_exit()
    models = BUILD / "models"
    BUILD.mkdir(parents=True, exist_ok=True)
    served.build(models)
    build_large(models)
    case = next(case for case in CASES if case.key == "a-json")
    script = wrk.write_script(BUILD / "a-json.lua", *case.body())
    loads: dict[tuple[str, str, str], list[wrk.Load]] = defaultdict(list)
    longest: dict[tuple[str, str, str], float] = defaultdict(float)
    watch = LoadWatch()
    with ExitStack() as stack:
        servers: dict[str, tuple[Server, Path]] = {}
        for index, checkout in enumerate(options.checkouts.split(",")):
            pauses = BUILD / f"{index}.pauses"
            pauses.unlink(missing_ok=True)
            server = watched_server(Path(checkout).resolve(), models, str(index), pauses)
            servers[checkout] = (stack.enter_context(server), pauses)
            wrk.run(server.url(case.path), script, connections=16, seconds=1)
        for _ in range(options.rounds):
            for condition in options.only:
                for checkout, (server, pauses) in servers.items():
                    before = len(collections(pauses))
                    with CONDITIONS[condition](server, models):
                        for connections in options.connections:
                            key = (checkout, condition, connections)
                            load = wrk.run(
                                server.url(case.path), script, connections=int(connections), seconds=options.seconds
                            )
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
