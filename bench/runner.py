"""The runner: loads are interleaved in turns of a fraction of a second, and the pairs of turns give ratios.

Whatever else the machine does hits all loads of a row alike. Each load has its own client, which is paused while
another load has its turn, so no turn pays for a start. A benchmark is data: its servers and its rows.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from bench.clients import BUILD, Load, Run
from bench.results import Comparison, Figures, Program, Turn, names_among, positive
from bench.servers.server import Server, beside, beside_command
from trident.app.terminal import counted

WARM_UP_S = 1.0
TAIL_S, TAIL_TURNS = 2.0, 2
DRAIN_S = 0.01


class NothingMeasured(RuntimeError):
    """In a whole turn, so that there is no ratio; on a crowded machine client or server may not have had a core."""


class NotServed(Exception):
    """The server does not answer a row's request; the message is its answer."""


Ask = Callable[[Server], AbstractContextManager[Load]]
"""Opens a load on a server after one request was answered rightly; NotServed if the server does not serve it."""


class Interleaved:
    """A context manager: all loads run and are warm on entry, and have ended on exit.

    After the exit, `errors` counts those of all loads.
    """

    errors = 0

    def __init__(
        self, loads: Mapping[str, Load], *, connections: int, seconds: float, warm_up_s: float = WARM_UP_S
    ) -> None:
        self.loads = loads
        self.warm_up_s = warm_up_s
        self.connections = connections
        self.seconds = seconds
        self._running: dict[str, Run] = {}

    def __enter__(self) -> Interleaved:
        try:
            for name, load in self.loads.items():
                self._running[name] = load.start(self.connections)
                time.sleep(self.warm_up_s)
                self._drain(load)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.errors = sum(run.end() for run in self._running.values())
        finally:
            self._kill()

    def round(self, number: int) -> dict[str, Turn]:
        """A turn of each load, in their order in even rounds and in the reverse order in odd ones.

        NothingMeasured if a server did not answer at all, or took less CPU time than the system counts.
        """
        names = list(self.loads) if number % 2 == 0 else list(self.loads)[::-1]
        return {name: self._turn(self.loads[name], self._running[name]) for name in names}

    def _turn(self, load: Load, run: Run) -> Turn:
        count, cpu_s = self._drain(load)
        start = time.perf_counter()
        run.go_on()
        time.sleep(self.seconds)
        self._stop()
        took_s = time.perf_counter() - start
        count_after, cpu_after_s = self._drain(load)
        requests, busy_s = count_after - count, cpu_after_s - cpu_s
        if requests == 0 or busy_s == 0:
            lacking = f"took no measurable CPU time for {requests} requests" if requests else "answered nothing"
            raise NothingMeasured(f"{load.server.name} {lacking} in a turn of {took_s:.2f} s: take longer turns")
        return Turn(requests / took_s, busy_s / requests * 1e6)

    def _drain(self, load: Load) -> tuple[int, float]:
        """Stop all clients and wait until the server has answered: its requests so far, and its CPU seconds."""
        before = load.server.requests(load.model)
        while True:
            # Repeated, because a tool that continues all processes of the machine continues these too.
            self._stop()
            time.sleep(DRAIN_S)
            cpu_s = load.server.cpu_seconds()
            count = load.server.requests(load.model)
            if count == before:
                return count, cpu_s
            before = count

    def _stop(self) -> None:
        for run in self._running.values():
            run.pause()

    def _kill(self) -> None:
        for run in self._running.values():
            run.kill()


def compare(title: str, loads: Mapping[str, Load], *, connections: int, pairs: int, seconds: float) -> Comparison:
    """Interleave the loads, and print the rows of their comparison."""
    with Interleaved(loads, connections=connections, seconds=seconds) as interleaved:
        turns = [interleaved.round(index) for index in range(pairs)]
    comparison = Comparison(title, connections, turns, interleaved.errors)
    for cells in comparison.cells():
        print(" | ".join(cells), file=sys.stderr, flush=True)
    return comparison


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison. `loads` are the server and the request of each load; the last one is the base.

    The goals are for the first load over the base: at least `rate` of its requests/s, at most `cpu` of its CPU time for
    a request, at most `extra_us` more for a request on one connection, at most `tail` of its 99th percentile, for which
    each load runs alone.
    """

    key: str
    title: str
    loads: Mapping[str, tuple[str, Ask]]
    connections: int = 16
    stretch: int = 1
    rate: float | None = None
    cpu: float | None = None
    extra_us: float | None = None
    tail: float | None = None


OTHER = "other"
"""The name of the server that `--beside` starts."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`build` writes the models, `servers` make servers from the folder of the models and a log, when first used.

    `takes_another`: the option --beside names the command of the server OTHER.
    """

    about: str
    build: Callable[[Path], object]
    servers: Mapping[str, Callable[[Path, Path], Server]]
    rows: Sequence[Row]
    pairs: int = 60
    turn_s: float = 0.25
    takes_another: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.key for row in self.rows))


def measure(benchmark: Benchmark, folder: Path, options: argparse.Namespace, results: Figures) -> None:
    """All rows that were asked for. SystemExit if a row is not served."""
    folder.mkdir(parents=True, exist_ok=True)
    benchmark.build(folder / "models")
    running: dict[str, Server] = {}
    with ExitStack() as servers:

        def server(name: str) -> Server:
            if name not in running:
                log = folder / f"{name.replace(' ', '-')}.log"
                if benchmark.takes_another and name == OTHER:
                    made = beside(options.beside, folder / "models", log)
                else:
                    made = benchmark.servers[name](folder / "models", log)
                    made.command += options.options if made.name.startswith("trident") else []
                running[name] = servers.enter_context(made)
            return running[name]

        for row in benchmark.rows:
            if row.key in options.only:
                _compare(row, server, options, results)


def _compare(row: Row, server: Callable[[str], Server], options: argparse.Namespace, results: Figures) -> None:
    with ExitStack() as stack:
        try:
            loads = {name: stack.enter_context(ask(server(on))) for name, (on, ask) in row.loads.items()}
        except NotServed as error:
            raise SystemExit(f"{row.title}: {error}") from error
        seconds = options.turn * row.stretch
        found = compare(row.title, loads, connections=row.connections, pairs=options.pairs, seconds=seconds)
    results.comparisons.append(found)
    name, base = found.loads[0], found.loads[-1]
    case = f"{row.title}, {counted(row.connections, 'connection')}"
    if row.rate is not None:
        results.at_least(case, f"requests/s over {base}", row.rate, found.rate_ratio(name).median)
    if row.cpu is not None:
        results.at_most(case, f"CPU per request over {base}", row.cpu, found.cpu_ratio(name).median)
    if row.extra_us is not None:
        results.at_most(case, f"µs of a request more than {base}", row.extra_us, found.extra_us(name))
    if row.tail is not None:
        tails = _tails(loads, row, results)
        results.at_most(case, f"p99 over {base}'s", row.tail, tails[name] / tails[base])
    results.at_most(case, "errors", 0, found.errors)


def _tails(loads: Mapping[str, Load], row: Row, results: Figures) -> dict[str, float]:
    """The 99th percentile of each load's latencies in milliseconds: that of the quieter of its turns."""
    turns: dict[str, list[float]] = {name: [] for name in loads}
    for _ in range(TAIL_TURNS):
        for name, load in loads.items():
            latencies = load.latencies(row.connections, TAIL_S * row.stretch)
            turns[name].append(float(np.percentile(latencies, 99)) * 1e3)
    for name, found in turns.items():
        results.note(f"{row.title}, {row.connections}", f"p99, {name}", "ms", found)
    return {name: min(found) for name, found in turns.items()}


def run(name: str, benchmark: Benchmark, arguments: Sequence[str]) -> None:
    """Measure what the arguments ask for, print the tables, and publish them."""
    parser = Program(name, benchmark.about)
    keys = benchmark.keys
    parser.add_argument("--only", type=names_among(keys), default=list(keys), help=", ".join(keys))
    parser.add_argument("--options", type=shlex.split, default=[], help="options for our servers, in one text")
    parser.add_argument("--pairs", type=positive, default=benchmark.pairs, help="pairs of turns of each row")
    parser.add_argument(
        "--turn", type=float, default=benchmark.turn_s, help="seconds of a turn; large bodies take more"
    )
    if benchmark.takes_another:
        parser.add_argument(
            "--beside",
            type=beside_command,
            metavar="COMMAND",
            required=True,
            help="another v2 server, with {repo}, {http}, {grpc} and {metrics} for the repository and the ports",
        )
    options, publication, results = parser.begin(arguments)
    measure(benchmark, BUILD / name, options, results)
    if benchmark.takes_another:
        for load in results.comparisons[0].loads[:-1]:
            rate = statistics.geometric_mean(found.rate_ratio(load).median for found in results.comparisons)
            cpu = statistics.geometric_mean(found.cpu_ratio(load).median for found in results.comparisons)
            results.remarks.append(f"Geometric means, {load}: requests/s {rate:.2f}, CPU per request {cpu:.2f}.")
    part = "" if set(options.only) == set(keys) else "-" + "-".join(options.only)
    results.publish(publication, f"-{name.replace('_', '-')}{part}")
