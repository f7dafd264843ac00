"""Compare shared memory with binary tensors on one server; write bench/results/<date>-<cpu>-shared-memory.*.

    python -m bench shared_memory                             all of it, about 3 minutes
    python -m bench shared_memory --only large --pairs 20
    python -m bench shared_memory --http-workers=2

The cases; the first two by turns of a fraction of a second:

    medium    600 KB echoed at 1 and 16 connections
    large     16 MB echoed at 1 and 4 connections
    ways      a copy through the descriptor of the memory, beside one through a map of it
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from bench import wrk
from bench.arguments import names_among, positive
from bench.figures import Figures
from bench.models import served
from bench.publication import Publication, add_publication_arguments
from bench.servers.server import trident
from bench.shared_memory.cases import CASES, Bench
from tests.project import ROOT

BUILD = ROOT / "build" / "bench" / "shared_memory"
CONDITIONS = "Server and clients share the cores."


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench shared_memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_among(tuple(CASES)), default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--pairs", type=positive, default=60, help="pairs of turns; the median of their ratios counts")
    parser.add_argument("--turn", type=float, default=0.25, help="seconds of each turn")
    parser.add_argument("--http-workers", type=int, default=0, help="front ends before an engine process")
    parser.add_argument("--map-bytes", type=int, default=0, help="the server's --client-shm-map-bytes")
    add_publication_arguments(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    wrk.require_or_exit()
    models = BUILD / "models"
    served.build(models)
    command = shlex.join(["python", "-m", "bench", "shared_memory", *arguments])
    publication = Publication(options)
    results = Figures(command, CONDITIONS)
    server = trident(models, BUILD / "server.log")
    server.command += [f"--http-workers={options.http_workers}", "--allow-client-shm=true"]
    server.command.append(f"--client-shm-map-bytes={options.map_bytes}")
    with server:
        bench = Bench(results, server, BUILD, pairs=options.pairs, seconds=options.turn)
        for name in options.only:
            print(f"{name}: begins", file=sys.stderr, flush=True)
            CASES[name](bench)
    parts = [] if set(options.only) == set(CASES) else options.only
    workers = [f"workers-{options.http_workers}"] if options.http_workers else []
    mapped = ["mapped"] if options.map_bytes else []
    results.publish(publication, "-".join(["-shared-memory", *parts, *workers, *mapped]))
