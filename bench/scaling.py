"""What a request costs the engine and each front end, pinned core by core, and what follows for more cores.

    python -m bench scaling                                  about 4 minutes
    python -m bench scaling --only d-binary --front-ends 1,2,4 --rounds 5

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
import json
import os
import shlex
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path

from bench import machine
from bench.cases import CASES, DIGIT, Case
from bench.clients import BUILD, finish, run_client, start_client, write_requests
from bench.machine import TICKS_PER_SECOND, MachineLoad
from bench.models import repositories
from bench.results import (
    Publication,
    add_publication_arguments,
    machine_sentence,
    names_among,
    number,
    positive,
    table,
)
from bench.servers.server import Server, trident
from tests.contract.servers.processes import engines_of, front_ends_of

_MICRO = 1e6


@dataclass(frozen=True, slots=True)
class Costs:
    """The CPU time of one request in microseconds: in the engine that has it, and in the front end."""

    engine_us: float
    front_end_us: float

    @property
    def total_us(self) -> float:
        return self.engine_us + self.front_end_us

    @property
    def one_engine_rate(self) -> float:
        """The requests a second at which one engine keeps its core busy all the time."""
        return _MICRO / self.engine_us

    @property
    def one_engine_cores(self) -> float:
        """The cores that one engine and the front ends before it can use: with more of them it is the limit."""
        return self.total_us / self.engine_us


@dataclass(frozen=True, slots=True)
class Plan:
    """Processes on `cores`, and the requests a second that they can answer. `limit` is what is used up first."""

    cores: int
    engines: int
    front_ends: int
    rate: float
    limit: str


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What a machine on which the client runs as well can answer, at `client_us` of CPU time a request there."""

    cores: int
    costs: Costs
    client_us: float

    @property
    def rate(self) -> float:
        """The requests a second that take all cores, however many engines there are."""
        return self.cores * _MICRO / (self.costs.total_us + self.client_us)

    @property
    def busy_engine(self) -> float:
        """The part of a core that one engine needs for them; more than 1: it ends before."""
        return self.rate / self.costs.one_engine_rate

    def times(self, engines: int) -> float:
        """How many times as many requests as one engine so many of them can answer, at the same costs."""
        one = self.costs.one_engine_rate
        return min(engines * one, self.rate) / min(one, self.rate)


def plan(costs: Costs, cores: int, engines: int, front_ends: int) -> Plan:
    limits = {
        "engines": engines * _MICRO / costs.engine_us,
        "front ends": front_ends * _MICRO / costs.front_end_us,
        "cores": cores * _MICRO / costs.total_us,
    }
    limit = min(limits, key=lambda name: limits[name])
    return Plan(cores, engines, front_ends, limits[limit], limit)


def best_plan(costs: Costs, cores: int, engines: int = 0) -> Plan:
    """The fewest processes that answer most; `engines` 0: as many as are best, otherwise no other number of them."""
    numbers = [engines] if engines else range(1, cores + 1)
    plans = [plan(costs, cores, number, front_ends) for number in numbers for front_ends in range(1, cores + 1)]
    return max(plans, key=lambda each: (round(each.rate), -each.engines - each.front_ends))


@dataclass(frozen=True, slots=True)
class Shape:
    """The processes of one server."""

    front_ends: int
    engines: int

    @property
    def options(self) -> list[str]:
        return [f"--http-workers={self.front_ends}", f"--engines={self.engines}"]

    def __str__(self) -> str:
        return f"{plural(self.engines, 'engine')}, {plural(self.front_ends, 'front end')}"


@dataclass(slots=True)
class Samples:
    """What was measured of one server and one case; a value for each round."""

    rates: list[float] = field(default_factory=list)
    engine_us: list[float] = field(default_factory=list)
    front_end_us: list[float] = field(default_factory=list)
    client_us: list[float] = field(default_factory=list)

    def take(
        self, requests: int, seconds: float, engines: Sequence[float], front_ends: Sequence[float], client: float
    ) -> None:
        """Add a round: its requests, how long it took, and the CPU seconds of each process."""
        self.rates.append(requests / seconds)
        self.engine_us.append(sum(engines) / requests * _MICRO)
        self.front_end_us.append(sum(front_ends) / requests * _MICRO)
        self.client_us.append(client / requests * _MICRO)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def costs(self) -> Costs:
        return Costs(statistics.median(self.engine_us), statistics.median(self.front_end_us))

    @property
    def busy_cores(self) -> float:
        """How many cores engines, front ends and client kept busy: 1.0 is one core all the time."""
        rounds = zip(self.rates, self.engine_us, self.front_end_us, self.client_us, strict=True)
        return statistics.median(rate * sum(costs_us) / _MICRO for rate, *costs_us in rounds)

    def times(self, other: Samples) -> list[float]:
        """How many times as many requests as `other` answered, round by round."""
        return [own / others for own, others in zip(self.rates, other.rates, strict=True)]


def plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


# About 2.6 * 10^8 multiplications an image; the digit CNN has 10^6.
_CHANNELS = (192, 768)
_THREADS = 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }'

HEAVY = Case(
    "heavy",
    "28x28 digit CNN of {} and {} channels, binary".format(*_CHANNELS),
    "digits_cnn_heavy",
    (("INPUT", "FP32", DIGIT),),
    ("OUTPUT",),
    binary=True,
)


def build_heavy(repository: Path) -> None:
    """Write the model of the case. Without a batcher each request is an execution of its own.

    One engine on a core of its own is used up then, while front ends and client have most of the other one. So a second
    engine shows even on two cores whether engines are independent of each other.
    """
    repositories.build_cnn(repository / HEAVY.model, batching=_THREADS, batch=1, channels=_CHANNELS)


@dataclass(frozen=True, slots=True)
class Processes:
    """The process ids of a running server."""

    engines: tuple[int, ...]
    front_ends: tuple[int, ...]

    @classmethod
    def of(cls, server: Server) -> Processes:
        return cls(tuple(engines_of(server)), tuple(front_ends_of(server)))

    def engine_seconds(self) -> list[float]:
        """The CPU time of each engine so far."""
        return [_seconds(process) for process in self.engines]

    def front_end_seconds(self) -> list[float]:
        return [_seconds(process) for process in self.front_ends]

    def pin(self, cores: Sequence[int]) -> list[int]:
        """Keep each process on a core of its own, the engines first, while there are enough. Returns the cores for the
        client: those that are left, or the front ends' if none is.
        """
        engines = min(len(self.engines), len(cores))
        others = cores[engines:] or cores
        for index, process in enumerate(self.engines):
            pin(process, [cores[index % engines]])
        for index, process in enumerate(self.front_ends):
            pin(process, [others[index % len(others)]])
        return list(others[len(self.front_ends) :] or others)


def pin(process: int, cores: Iterable[int]) -> None:
    """As `taskset --all-tasks`: keep the process, with all of its threads, on `cores`."""
    for thread in os.listdir(f"/proc/{process}/task"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def _seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


# Source: Linux documentation of `cgroup-v2` (cpu.max) and of bandwidth control (cpu.cfs_quota_us).
_ROOT = Path("/sys/fs/cgroup")
# Short, so that requests do not wait long for the next one.
_PERIOD_US = 10_000


@contextmanager
def limited(processes: dict[int, float]) -> Iterator[bool]:
    """Inside, each process has at most its share of a core. Gives whether it could be done: it takes root, and a
    cgroup in which the controller `cpu` is on.
    """
    folders: list[Path] = []
    parent = _ROOT / "cpu" if (_ROOT / "cpu").is_dir() else _ROOT
    try:
        for process, share in processes.items():
            folder = parent / f"trident-bench-{os.getpid()}-{process}"
            folder.mkdir()
            folders.append(folder)
            quota_us = round(share * _PERIOD_US)
            if (folder / "cpu.max").exists():
                (folder / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
            else:
                (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                (folder / "cpu.cfs_quota_us").write_text(str(quota_us))
            (folder / "cgroup.procs").write_text(str(process))
        done = True
    except OSError:
        done = False
    try:
        yield done
    finally:
        for folder in folders:
            with suppress(OSError):
                for left in (folder / "cgroup.procs").read_text().split():
                    (parent / "cgroup.procs").write_text(left)
                folder.rmdir()


@dataclass(slots=True)
class Measured:
    """The figures of one case. `limited` and `unlimited` are servers of one engine and of several, if measured."""

    title: str
    costs: Costs
    one: dict[Shape, Samples]
    limited: dict[Shape, Samples] = field(default_factory=dict)
    unlimited: dict[Shape, Samples] = field(default_factory=dict)


def figures(
    cases: Sequence[Measured], heavy: dict[Shape, Samples], cores: Sequence[int], share: float, load: MachineLoad | None
) -> dict[str, str]:
    """The tables and sentences of a run, by what they show. `load` is the machine during the run."""
    parts = {}
    if cases:
        parts = {
            "costs": _costs(cases, load),
            "bounds": _bounds(cases, cores),
            "limited": _limited(cases, share),
            "unlimited": _unlimited(cases),
            "ceiling": _ceiling(cases, machine.cores()),
        }
    if heavy:
        parts["heavy"] = _heavy(heavy, machine.cores(), load)
    return parts


def _costs(cases: Sequence[Measured], seen: MachineLoad | None) -> str:
    rows = [
        [case.title, str(shape.front_ends), number(seen.costs.engine_us), number(seen.costs.front_end_us)]
        for case in cases
        for shape, seen in case.one.items()
    ]
    header = ["model", "front ends", "engine, µs a request", "front ends, µs a request"]
    about = machine.describe()
    where = f"{machine.today()}, {about['cpu']}, {about['cores']} cores, Python {about['python']}."
    return f"{where}{machine_sentence(seen)}\n\n{table(header, rows)}"


def _bounds(cases: Sequence[Measured], cores: Sequence[int]) -> str:
    rows = []
    for case, count in product(cases, cores):
        one, best = best_plan(case.costs, count, engines=1), best_plan(case.costs, count)
        processes = f"{best.engines} + {best.front_ends}"
        rows.append([case.title, str(count), number(one.rate), one.limit, processes, number(best.rate)])
    header = ["model", "cores", "one engine, requests/s", "its limit", "best engines + front ends", "requests/s"]
    ends = "; ".join(
        f"{case.title}: at {number(case.costs.one_engine_rate)} requests/s, which take "
        f"{number(case.costs.one_engine_cores)} cores"
        for case in cases
    )
    return f"{table(header, rows)}\n\nThe limit of one engine: {ends}."


def _limited(cases: Sequence[Measured], share: float) -> str:
    rows = [
        [case.title, str(shape.engines), number(seen.rate), *_times(seen, one)]
        for case in cases
        for one, shape, seen in _beside_one(case.limited)
    ]
    header = ["model", "engines", "requests/s", "times one engine, median", "least and most"]
    if not rows:
        return "Not measured: no cgroup could be made for the engines."
    return f"Each engine {share:g} of a core:\n\n{table(header, rows)}"


def _unlimited(cases: Sequence[Measured]) -> str:
    rows = []
    for case in cases:
        for one, shape, seen in _beside_one(case.unlimited):
            costs_us = map(statistics.median, (seen.engine_us, seen.front_end_us, seen.client_us))
            rows.append(
                [
                    case.title,
                    str(shape.engines),
                    number(seen.rate),
                    _times(seen, one)[0],
                    *map(number, costs_us),
                    f"{seen.busy_cores:.2f}",
                ]
            )
    header = ["model", "engines", "requests/s", "times one engine", "engines, µs", "front ends, µs", "client, µs"]
    return table([*header, "cores busy"], rows)


def _ceiling(cases: Sequence[Measured], cores: int) -> str:
    """The worked example: what follows from the costs of the table before it, and what was measured."""
    sentences = []
    for case in cases:
        for one, shape, seen in _beside_one(case.unlimited):
            if seen is one:
                continue
            bound = Ceiling(cores, one.costs, statistics.median(one.client_us))
            parts = " + ".join(map(number, (bound.costs.engine_us, bound.costs.front_end_us, bound.client_us)))
            sentences.append(
                f"* {case.title}: {cores} cores / ({parts} µs) are {number(bound.rate)} requests/s, for which one "
                f"engine needs {bound.busy_engine:.2f} of a core. So {plural(shape.engines, 'engine')} can answer "
                f"{bound.times(shape.engines):.2f} times as many as one; measured were {_times(seen, one)[0]}."
            )
    return "\n".join(sentences)


def _heavy(seen: dict[Shape, Samples], cores: int, load: MachineLoad | None) -> str:
    rows = []
    for one, shape, each in _beside_one(seen):
        bound = Ceiling(cores, one.costs, statistics.median(one.client_us))
        costs_us = map(statistics.median, (each.engine_us, each.front_end_us, each.client_us))
        possible = "" if each is one else f"{bound.times(shape.engines):.2f}"
        rows.append([str(shape.engines), number(each.rate), *map(number, costs_us), *_times(each, one), possible])
    header = ["engines", "requests/s", "engines, µs", "front ends, µs", "client, µs"]
    header += ["times one engine, median", "least and most", "at most"]
    return f"{HEAVY.title}.{machine_sentence(load)}\n\n{table(header, rows)}"


def _beside_one(seen: dict[Shape, Samples]) -> list[tuple[Samples, Shape, Samples]]:
    """Each server with the one of the fewest engines."""
    shapes = sorted(seen, key=lambda shape: shape.engines)
    return [(seen[shapes[0]], shape, seen[shape]) for shape in shapes]


def _times(seen: Samples, one: Samples) -> list[str]:
    if seen is one:
        return ["1", ""]
    times = seen.times(one)
    return [f"{statistics.median(times):.2f}", f"{min(times):.2f} to {max(times):.2f}"]


FOLDER = BUILD / "scaling"
KEYS = ("a-binary", "d-binary", HEAVY.key)
CONNECTIONS = 64
CONDITIONS = f"{CONNECTIONS} connections; engines, front ends and client on cores of their own where there are enough."
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
        server = trident(self._models, FOLDER / f"{shape.engines}-{shape.front_ends}.log")
        server.command += shape.options
        self._stack.enter_context(server)
        return server, Processes.of(server)

    def measure(
        self, servers: dict[Shape, tuple[Server, Processes]], case: Case, *, pinned: bool
    ) -> dict[Shape, Samples]:
        """The servers in turn, in the other order every second round. `pinned`: each process on a core of its own,
        otherwise where the system puts it.
        """
        body, headers = case.body()
        requests = write_requests(case.key, body, headers=headers)
        seen = {shape: Samples() for shape in servers}
        for turn in range(self._rounds):
            for shape in list(servers)[:: 1 if turn % 2 == 0 else -1]:
                self._turn(*servers[shape], case, requests, seen[shape], pinned=pinned)
        return seen

    def _turn(
        self, server: Server, processes: Processes, case: Case, requests: Path, seen: Samples, *, pinned: bool
    ) -> None:
        url = server.url(case.path)
        cores = processes.pin(sorted(os.sched_getaffinity(0))) if pinned else sorted(os.sched_getaffinity(0))
        run_client(url, requests, connections=CONNECTIONS, seconds=_WARM_UP_S)
        before = processes.engine_seconds(), processes.front_end_seconds()
        client = start_client(url, requests, connections=CONNECTIONS, seconds=self._seconds)
        pin(client.pid, cores)
        load = finish(client)
        if load.errors:
            raise RuntimeError(f"{load.errors} requests failed; the log is {server.log}")
        after = processes.engine_seconds(), processes.front_end_seconds()
        worked = [[end - begin for end, begin in zip(*pair, strict=True)] for pair in zip(after, before, strict=True)]
        engines, front_ends = worked
        seen.take(load.requests, load.seconds, engines, front_ends, load.cpu_s)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names_among(KEYS), default=list(KEYS), help=", ".join(KEYS))
    parser.add_argument("--front-ends", type=_numbers, default=[1, 2, 4], help="before one engine")
    parser.add_argument("--engines", type=_numbers, default=[1, 2], help="behind two front ends, compared")
    parser.add_argument("--cores", type=_numbers, default=[4, 8, 16, 64], help="of the projected servers")
    parser.add_argument("--engine-share", type=float, default=0.1, help="of a core, for each compared engine")
    parser.add_argument("--rounds", type=positive, default=3, help="turns of each server; the median counts")
    parser.add_argument("--seconds", type=positive, default=4, help="of each turn")
    add_publication_arguments(parser)
    return parser.parse_args(arguments)


def _numbers(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def mean_costs(found: dict[Shape, Samples]) -> Costs:
    """Of one engine behind several front ends."""
    costs = [each.costs for each in found.values()]
    return Costs(
        statistics.mean(each.engine_us for each in costs), statistics.mean(each.front_end_us for each in costs)
    )


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    models = FOLDER / "models"
    repositories.build(models)
    build_heavy(models)
    publication = Publication(options)
    measured: list[Measured] = []
    heavy: dict[Shape, Samples] = {}
    with ExitStack() as stack:
        bench = Bench(stack, models, options)
        one = {shape: bench.start(shape) for shape in (Shape(count, 1) for count in options.front_ends)}
        several = {shape: bench.start(shape) for shape in (Shape(2, count) for count in options.engines)}
        for case in (case for case in CASES if case.key in options.only):
            print(f"{case.title}: begins", file=sys.stderr, flush=True)
            found = bench.measure(one, case, pinned=True)
            each = Measured(case.title, mean_costs(found), found)
            engines = {
                engine: options.engine_share for _, processes in several.values() for engine in processes.engines
            }
            with limited(engines) as done:
                if done:
                    each.limited = bench.measure(several, case, pinned=False)
            each.unlimited = bench.measure(several, case, pinned=False)
            measured.append(each)
        if HEAVY.key in options.only:
            heavy = bench.measure(several, HEAVY, pinned=True)
    load = publication.load()
    parts = figures(measured, heavy, options.cores, options.engine_share, load)
    command = shlex.join(["python", "-m", "bench", "scaling", *arguments])
    text = "\n\n".join([CONDITIONS, f"Run again with `{command}`.", *parts.values()]) + "\n"
    rows = [[asdict(row) for row in each.one.values()] for each in measured]
    document = {"date": machine.today(), "machine": machine.describe(), "command": command, "one_engine": rows}
    publication.write("-scaling", json.dumps(document, indent=1) + "\n", text, load)
    print(text)
