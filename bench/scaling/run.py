"""What a request costs the engine and each front end, pinned core by core, and what follows for more cores.

    python -m bench scaling                                  about 4 minutes
    python -m bench scaling --only d-binary --front-ends 1,2,4 --rounds 5
    python -m bench scaling --rounds 5 --seconds 4 --page    also writes the figures into docs/scaling.md

Each server has its engines on cores of their own, its front ends on the next ones, and the client on those that are
left; where there are too few, front ends and client share them. The cost of a request is the CPU time of a process
divided by its requests, so a core that is shared changes it little. Servers take turns, round by round.

Several engines are compared with one where the engines are what ends first: each may use a share of a core
(`--engine-share`, by a cgroup, which takes root), and front ends and client have all the rest. Then they are compared
without a limit, where the system puts them, with the cores that engines, front ends and client keep busy: if these are
all that there are, another engine has nothing to run on. `heavy` is a case whose executions cost far more than front
ends and client: there each engine has a core of its own, and a second one shows on two cores, too.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import wrk
from bench.arguments import names_among, positive
from bench.cases import CASES, Case
from bench.figures import Figures
from bench.models import served
from bench.publication import Publication, add_publication_arguments
from bench.scaling.heavy import HEAVY, build_heavy
from bench.scaling.page import PAGE, Measured, write_page
from bench.scaling.processes import Processes, pin
from bench.scaling.projection import Costs, best_plan
from bench.scaling.seen import Seen, Shape, plural
from bench.scaling.share import limited
from bench.servers.server import Server, trident
from bench.tables import number, table
from tests.project import ROOT

BUILD = ROOT / "build" / "bench" / "scaling"
KEYS = ("a-binary", "d-binary", HEAVY.key)
CONNECTIONS = 64
CONDITIONS = f"{CONNECTIONS} connections; engines, front ends and wrk on cores of their own where there are enough."
# Seconds from the client's start until the server is measured.
_WARM_UP_S = 1


class Bench:
    """The running servers, which end with `stack`."""

    def __init__(self, stack: ExitStack, models: Path, options: argparse.Namespace) -> None:
        self._stack = stack
        self._models = models
        self._seconds: int = options.seconds
        self._rounds: int = options.rounds

    def start(self, shape: Shape) -> tuple[Server, Processes]:
        server = trident(self._models, BUILD / f"{shape.engines}-{shape.front_ends}.log")
        server.command += shape.options
        self._stack.enter_context(server)
        return server, Processes.of(server)

    def measure(self, servers: dict[Shape, tuple[Server, Processes]], case: Case, *, pinned: bool) -> dict[Shape, Seen]:
        """The servers by turns, in the other order every second round. `pinned`: each process on a core of its own,
        otherwise where the system puts it.
        """
        script = wrk.write_script(BUILD / f"{case.key}.lua", *case.body())
        seen = {shape: Seen() for shape in servers}
        for turn in range(self._rounds):
            for shape in list(servers)[:: 1 if turn % 2 == 0 else -1]:
                self._turn(*servers[shape], case, script, seen[shape], pinned=pinned)
        return seen

    def _turn(
        self, server: Server, processes: Processes, case: Case, script: Path, seen: Seen, *, pinned: bool
    ) -> None:
        url = server.url(case.path)
        cores = processes.pin(sorted(os.sched_getaffinity(0))) if pinned else sorted(os.sched_getaffinity(0))
        wrk.run(url, script, connections=CONNECTIONS, seconds=_WARM_UP_S)
        before = processes.engine_seconds(), processes.front_end_seconds(), [_ended_seconds()]
        client = wrk.start(url, script, connections=CONNECTIONS, seconds=self._seconds)
        pin(client.pid, cores)
        load = wrk.finish(client)
        if load.errors:
            raise RuntimeError(f"{load.errors} requests failed; the log is {server.log}")
        after = processes.engine_seconds(), processes.front_end_seconds(), [_ended_seconds()]
        worked = [[end - begin for end, begin in zip(*pair, strict=True)] for pair in zip(after, before, strict=True)]
        engines, front_ends, (client_seconds,) = worked
        seen.take(load.requests, load.seconds, engines, front_ends, client_seconds)


def _ended_seconds() -> float:
    """The CPU time of this process's children that have ended, the clients."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_among(KEYS), default=list(KEYS), help=", ".join(KEYS))
    parser.add_argument("--front-ends", type=_numbers, default=[1, 2, 4], help="before one engine")
    parser.add_argument("--engines", type=_numbers, default=[1, 2], help="behind two front ends, compared")
    parser.add_argument("--cores", type=_numbers, default=[4, 8, 16, 64], help="of the projected servers")
    parser.add_argument("--engine-share", type=float, default=0.1, help="of a core, for each compared engine")
    parser.add_argument("--page", action="store_true", help=f"write the figures into {PAGE.relative_to(ROOT)}, too")
    parser.add_argument("--rounds", type=positive, default=3, help="turns of each server; the median counts")
    parser.add_argument("--seconds", type=positive, default=4, help="of each turn")
    add_publication_arguments(parser)
    return parser.parse_args(arguments)


def _numbers(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def note_costs(results: Figures, case: Case, seen: dict[Shape, Seen]) -> Costs:
    """The figures of one engine behind several front ends. Returns the mean costs."""
    for shape, found in seen.items():
        results.note(f"{case.title}, {shape}", "engine, CPU per request", "µs", found.engine_us)
        results.note(f"{case.title}, {shape}", "front ends, CPU per request", "µs", found.front_end_us)
        results.note(f"{case.title}, {shape}", "requests", "1/s", found.rates)
    costs = [found.costs for found in seen.values()]
    return Costs(
        statistics.mean(each.engine_us for each in costs), statistics.mean(each.front_end_us for each in costs)
    )


def compare_engines(
    results: Figures,
    case: Case,
    bench: Bench,
    servers: dict[Shape, tuple[Server, Processes]],
    share: float,
    measured: Measured,
) -> None:
    """Several engines beside one: each with a share of a core, then without a limit."""
    engines = {engine: share for _, processes in servers.values() for engine in processes.engines}
    with limited(engines) as done:
        if done:
            measured.limited = bench.measure(servers, case, pinned=False)
            note_engines(results, f"{case.title}, each engine {share:g} of a core", measured.limited)
        else:
            results.remarks.append("No engine was limited: no cgroup could be made for it.")
    measured.unlimited = bench.measure(servers, case, pinned=False)
    note_engines(results, f"{case.title}, without a limit", measured.unlimited)


def note_engines(results: Figures, title: str, seen: dict[Shape, Seen]) -> None:
    """The figures of several engines beside one."""
    shapes = sorted(seen, key=lambda shape: shape.engines)
    for shape in shapes:
        found = seen[shape]
        results.note(f"{title}, {shape}", "requests", "1/s", found.rates)
        results.note(f"{title}, {shape}", "all engines, CPU per request", "µs", found.engine_us)
        results.note(f"{title}, {shape}", "front ends, CPU per request", "µs", found.front_end_us)
        results.note(f"{title}, {shape}", "client, CPU per request", "µs", found.client_us)
    for shape in shapes[1:]:
        what = f"requests/s of {plural(shape.engines, 'engine')}, beside one"
        results.note(title, what, "times", seen[shape].times(seen[shapes[0]]))


def projection(case: Case, costs: Costs, cores: Sequence[int]) -> str:
    """The table of one case for people."""
    rows = []
    for count in cores:
        one, best = best_plan(costs, count, engines=1), best_plan(costs, count)
        rows.append(
            [str(count), number(one.rate), one.limit, str(best.engines), str(best.front_ends), number(best.rate)]
        )
    header = ["cores", "requests/s, one engine", "its limit", "engines", "front ends", "requests/s"]
    text = (
        f"{case.title}: {number(costs.engine_us)} µs in the engine and {number(costs.front_end_us)} µs in the front "
        f"end. One engine ends at {number(costs.one_engine_rate)} requests/s, which take "
        f"{number(costs.one_engine_cores)} cores."
    )
    return f"{text}\n\n{table(header, rows)}\n"


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    wrk.require_or_exit()
    models = BUILD / "models"
    BUILD.mkdir(parents=True, exist_ok=True)
    served.build(models)
    build_heavy(models)
    publication = Publication(options)
    results = Figures(shlex.join(["python", "-m", "bench", "scaling", *arguments]), CONDITIONS)
    with ExitStack() as stack:
        bench = Bench(stack, models, options)
        one = {shape: bench.start(shape) for shape in (Shape(count, 1) for count in options.front_ends)}
        several = {shape: bench.start(shape) for shape in (Shape(2, count) for count in options.engines)}
        cases = [case for case in CASES if case.key in options.only]
        measured = []
        for case in cases:
            print(f"{case.title}: begins", file=sys.stderr, flush=True)
            found = bench.measure(one, case, pinned=True)
            costs = note_costs(results, case, found)
            results.remarks.append(projection(case, costs, options.cores))
            measured.append(Measured(case.title, costs, found))
            compare_engines(results, case, bench, several, options.engine_share, measured[-1])
        heavy: dict[Shape, Seen] = {}
        if HEAVY.key in options.only:
            heavy = bench.measure(several, HEAVY, pinned=True)
            note_engines(results, f"{HEAVY.title}, each engine on a core of its own", heavy)
    results.publish(publication, "-scaling")
    if options.page:
        if results.seen is not None and not publication.is_public(results.seen):
            raise SystemExit(f"{PAGE.name} is unchanged: the machine was crowded. --crowded writes it all the same.")
        write_page(measured, heavy, options.cores, options.engine_share, results.seen)
