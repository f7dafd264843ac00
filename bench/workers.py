"""The comparisons of HTTP workers before an engine process."""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import plain, wrk
from bench.cases import CASES as MODEL_CASES
from bench.cases import Case
from bench.models import served
from bench.results import Figures, Publication, add_publication_arguments, names_among, positive
from bench.servers.server import Server, account_mb, trident
from tests.contract.servers.processes import front_ends_of
from tests.project import ROOT

_BY_KEY = {case.key: case for case in MODEL_CASES}
_GROWTH_REQUESTS = 100_000


def serve(repository: Path, log: Path, workers: int) -> Server:
    server = trident(repository, log)
    server.name = f"{workers} workers"
    server.command.append(f"--http-workers={workers}")
    return server


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one server. Times are microseconds."""

    requests_per_second: float
    cpu_us: float
    p50_us: float
    errors: int


class Bench:
    """Runs `rounds` turns of `seconds` on each server, one after the other; the first turn of each does not count."""

    def __init__(self, results: Figures, repository: Path, build: Path, *, rounds: int, seconds: int) -> None:
        self.results = results
        self._repository = repository
        self._build = build
        self._rounds = rounds
        self._seconds = seconds

    def server(self, workers: int) -> Server:
        return serve(self._repository, self._build / f"{workers}.log", workers)

    def script(self, case: Case) -> Path:
        return wrk.write_script(self._build / f"{case.key}.lua", *case.body())

    def compare(self, key: str, connections: int, workers: Sequence[int]) -> dict[int, list[Turn]]:
        """Run the turns of each number of workers and note them in the results."""
        case = _BY_KEY[key]
        script = self.script(case)
        turns: dict[int, list[Turn]] = {number: [] for number in workers}
        with ExitStack() as stack:
            servers = {number: stack.enter_context(self.server(number)) for number in workers}
            for server in servers.values():
                plain.check_answer(server, case, self._repository)
            for index in range(self._rounds + 1):
                for number, server in servers.items():
                    turn = self._turn(server, case, script, connections)
                    if index:
                        turns[number].append(turn)
        title = f"{case.title}, {connections} connections"
        for number, own in turns.items():
            name = f"{number} workers" if number else "one process"
            self.results.note(title, f"requests/s; {name}", "requests/s", [t.requests_per_second for t in own])
            self.results.note(title, f"CPU per request; {name}", "µs", [t.cpu_us for t in own])
            self.results.note(title, f"p50; {name}", "µs", [t.p50_us for t in own])
        errors = sum(turn.errors for own in turns.values() for turn in own)
        self.results.at_most(title, "errors", 0, errors)
        return turns

    def _turn(self, server: Server, case: Case, script: Path, connections: int) -> Turn:
        before = server.cpu_seconds()
        seconds = self._seconds * case.stretch
        load = wrk.run(server.url(case.path), script, connections=connections, seconds=seconds)
        cpu = server.cpu_seconds() - before
        return Turn(load.requests / load.seconds, cpu / load.requests * 1e6, load.p50_ms * 1000, load.errors)


def _ratio(turns: dict[int, list[Turn]], over: int, under: int, of: Callable[[Turn], float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(of(a) / of(b) for a, b in zip(turns[over], turns[under], strict=True))


def _rate(turn: Turn) -> float:
    return turn.requests_per_second


def _cpu(turn: Turn) -> float:
    return turn.cpu_us


def small(bench: Bench) -> None:
    for connections, rate in ((16, 1.25), (64, 1.4)):
        turns = bench.compare("a-binary", connections, (0, 1))
        title = f"add/sub, binary, {connections} connections, 1 worker"
        bench.results.at_least(title, "requests/s over those of one process", rate, _ratio(turns, 1, 0, _rate))
        bench.results.at_most(title, "CPU per request over that of one process", 0.8, _ratio(turns, 1, 0, _cpu))
    for key in ("a-binary", "a-json"):
        turns = bench.compare(key, 64, (0, 2))
        title = f"add/sub, {'binary' if key == 'a-binary' else 'JSON'}, 64 connections, 2 workers"
        bench.results.at_least(title, "requests/s over those of one process", 1.6, _ratio(turns, 2, 0, _rate))


def single(bench: Bench) -> None:
    turns = bench.compare("a-binary", 1, (0, 1))
    more = statistics.median(a.p50_us - b.p50_us for a, b in zip(turns[1], turns[0], strict=True))
    bench.results.at_most("add/sub, binary, 1 connection, 1 worker", "µs of p50 more than one process", 80, more)


def large(bench: Bench) -> None:
    turns = bench.compare("b", 16, (0, 1))
    title = "600 KB echoed, 16 connections, 1 worker"
    bench.results.at_least(title, "requests/s over those of one process", 1.3, _ratio(turns, 1, 0, _rate))


def json_image(bench: Bench) -> None:
    turns = bench.compare("c-mean", 16, (1, 2))
    title = "3x224x224 image as JSON, 16 connections, 2 workers"
    bench.results.at_least(title, "requests/s over those of 1 worker", 1.8, _ratio(turns, 2, 1, _rate))


def memory(bench: Bench) -> None:
    """Note, in MB, the private memory of workers, and that of all processes before and after many requests."""
    case = _BY_KEY["a-binary"]
    script = bench.script(case)
    with bench.server(2) as two:
        wrk.run(two.url(case.path), script, connections=16, seconds=5)
        # Private memory would be free without the worker. Pages that forked processes share would stay.
        private = [account_mb(worker, "Private_Clean:", "Private_Dirty:") for worker in front_ends_of(two)]
        bench.results.note("memory", "private, of each of two workers", "MB", private)
        bench.results.at_most("memory", "MB that a second worker costs", 60, max(private))
        before, sent = two.proportional_mb(), 0
        while sent < _GROWTH_REQUESTS:
            sent += wrk.run(two.url(case.path), script, connections=16, seconds=5).requests
        growth = two.proportional_mb() - before
        bench.results.note("memory", f"growth over {sent} requests", "MB", [growth])
        bench.results.at_most("memory", "MB of growth over 100,000 requests", 5, growth)


CASES: dict[str, Callable[[Bench], None]] = {
    "small": small,
    "single": single,
    "large": large,
    "json": json_image,
    "memory": memory,
}


#         python -m bench workers                             all of it, about 20 minutes
#         python -m bench workers --only small,memory --rounds 5
#         make bench BENCH_ARGS='workers --only json'
#
# The cases, each by turns in one run:
#
#         small     add/sub of 16 integers at 16 and 64 connections, 1 and 2 workers
#         single    the same at one connection
#         large     600 KB echoed at 16 connections, 1 worker
#         json      a 3x224x224 image as JSON at 16 connections, 2 workers beside 1
#         memory    the memory of a second worker, and the growth over 100,000 requests


BUILD = ROOT / "build" / "bench" / "workers"
CONDITIONS = "Servers and wrk share the cores."


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench workers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_among(tuple(CASES)), default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--rounds", type=positive, default=9, help="turns of each server; the median of ratios counts")
    parser.add_argument("--seconds", type=positive, default=3, help="of each turn")
    add_publication_arguments(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    wrk.require_or_exit()
    models = BUILD / "models"
    BUILD.mkdir(parents=True, exist_ok=True)
    served.build(models)
    command = shlex.join(["python", "-m", "bench", "workers", *arguments])
    publication = Publication(options)
    results = Figures(command, CONDITIONS)
    bench = Bench(results, models, BUILD, rounds=options.rounds, seconds=options.seconds)
    for name in options.only:
        print(f"{name}: begins", file=sys.stderr, flush=True)
        CASES[name](bench)
    part = "" if set(options.only) == set(CASES) else "-" + "-".join(options.only)
    results.publish(publication, f"-workers{part}")
