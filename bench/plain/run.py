"""Run the benchmark of plain HTTP: servers side by side on loopback, driven by `wrk`, every figure from the same run.

    make bench
    make bench BENCH_ARGS='--only a,d --connections 16 --duration 3'
    python -m bench --beside 'tritonserver --model-repository={repo} --http-port={http} --grpc-port={grpc}
        --metrics-port={metrics}'

Prints its tables and writes bench/results/<date>-<cpu>.json and .md. `--beside` measures another v2 server instead of
the Flask server: the same rounds, bodies and wrk, one row with the ratios for each case.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import machine, wrk
from bench.arguments import positive
from bench.cases import CASES
from bench.models import served
from bench.plain import beside, measure, report
from bench.plain.results import Results
from bench.plain.rounds import Rounds
from bench.publication import Publication, add_publication_arguments, update_readme
from bench.servers import server as servers
from tests.project import ROOT

BUILD = ROOT / "build" / "bench"
FACTORIES = {"trident": servers.trident, "flask": servers.flask}
# Until the loop's best batch size is known.
RESNET_BATCH = 8
KEYS = {case.key for case in CASES} | {case.letter for case in CASES} | {"empty", "loop", "memory"}
# The compute-bound case says nothing of a server: both run the same graph in the same library.
BESIDE_KEYS = {"a", "b", "c", "d", "f"}


def keys(text: str) -> set[str]:
    """The cases that `--only` names."""
    named = set(text.split(","))
    if named - KEYS:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(named - KEYS))}: not among {', '.join(sorted(KEYS))}")
    return named


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def server_names(text: str) -> list[str]:
    names = text.split(",")
    if set(names) - set(FACTORIES):
        raise argparse.ArgumentTypeError(f"choose from {', '.join(FACTORIES)}")
    return names


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--duration", type=positive, default=3, help="seconds of a round; slow cases take two or three times as long"
    )
    parser.add_argument("--rounds", type=positive, default=3, help="rounds of each cell; their median counts")
    parser.add_argument(
        "--connections", type=numbers, default="1,16,64", help="numbers of connections, separated by commas"
    )
    parser.add_argument("--only", type=keys, help="letters or keys (a,c-mean), empty, loop, memory; default all")
    parser.add_argument("--servers", type=server_names, help="trident,flask")
    parser.add_argument(
        "--beside",
        type=servers.beside_command,
        metavar="COMMAND",
        help="another v2 server, with {repo}, {http}, {grpc} and {metrics} for the repository and the ports",
    )
    parser.add_argument("--growth-requests", type=positive, default=100_000, help="requests of the memory test")
    parser.add_argument("--update-readme", action="store_true", help="put the tables into README.md too")
    parser.add_argument("--show", type=Path, help="measure nothing: print the tables of this JSON file")
    add_publication_arguments(parser)
    options = parser.parse_args(arguments)
    if options.beside and options.update_readme:
        parser.error("README.md carries the run beside the Flask server: --update-readme does not go with --beside")
    options.only = options.only or (BESIDE_KEYS if options.beside else KEYS)
    options.servers = options.servers or (["trident"] if options.beside else list(FACTORIES))
    return options


def run(options: argparse.Namespace) -> Results:
    """Build the models, start the servers, measure, stop them."""
    results = Results(
        machine.today(), machine.describe(), options.duration, options.rounds, beside=options.beside or ""
    )
    build = BUILD / "beside" if options.beside else BUILD
    build.mkdir(parents=True, exist_ok=True)
    models = build / "models"
    served.build(models)
    if "e" in options.only:
        print("looking for the bare loop's best batch size and thread count", file=sys.stderr, flush=True)
        graph = served.build_resnet(models, batch=RESNET_BATCH)
        results.bare = measure.best_bare_loop(graph, machine.cores())
        served.build_resnet(models, batch=results.bare.batch)
    with contextlib.ExitStack() as stack:
        running = {
            name: stack.enter_context(FACTORIES[name](models, BUILD / f"{name}.log")) for name in options.servers
        }
        if options.beside:
            other = servers.beside(options.beside, models, build / "beside.log")
            running[other.name] = stack.enter_context(other)
        empty = stack.enter_context(servers.own_worker(build / "empty.log")) if "empty" in options.only else None
        loop = stack.enter_context(servers.socket_loop(models, build / "loop.log")) if "loop" in options.only else None
        Rounds(options, build, running, results, empty, loop).measure()
    return results


def page(results: Results) -> str:
    return beside.markdown(results) if results.beside else report.markdown(results)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    file: Path = options.show
    if file:
        results = Results.read(file)
    else:
        wrk.require_or_exit()
        publication = Publication(options)
        results = run(options)
        results.seen = publication.seen()
        name = "-beside" if options.beside else ""
        file = publication.write(name, results.to_json(), page(results), results.seen)
        if not publication.is_public(results.seen):
            options.update_readme = False
    print(page(results))
    if options.update_readme:
        full = file.with_suffix(".md").resolve().relative_to(ROOT)
        update_readme(ROOT / "README.md", report.brief(results, str(full)), report.MARKS)
