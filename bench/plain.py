"""Plain HTTP beside a Flask server and the bare `session.run` loop, or beside another v2 server.

    make bench
    make bench BENCH_ARGS='--only a,d --connections 16 --duration 3'
    python -m bench --beside 'tritonserver --model-repository={repo} --http-port={http} --grpc-port={grpc}
            --metrics-port={metrics}'

Prints its tables and writes bench/results/<date>-<cpu>.json and .md. `--beside` measures another v2 server instead of
the Flask server: the same rounds, bodies and client, one row with the ratios for each case.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import machine
from bench.cases import CASES, Case
from bench.clients import BUILD, run_client, write_requests
from bench.loads import check_outputs
from bench.machine import MachineLoad
from bench.models import repositories
from bench.results import (
    TARGET_HEADER,
    Publication,
    Target,
    add_publication_arguments,
    geometric_mean,
    machine_sentence,
    names_among,
    positive,
    table,
)
from bench.servers import server as servers
from bench.servers.server import Server
from tests.project import ROOT
from trident.app.bench.measure import number

WARM_UP_S = 1
BARE_SECONDS = 4.0
BARE_BATCHES = (1, 2, 4, 8, 16)
# The number of connections at which case (e) is compared with the bare loop.
BARE_CONNECTIONS = 16
# Until the loop's best batch size is known.
RESNET_BATCH = 8
_MEASURED = ("requests", "requests_per_second", "p50_ms", "p99_ms", "cpu_us", "mean_batch", "resident_mb")


@dataclass(frozen=True, slots=True)
class Cell:
    """`cpu_us` is the server's CPU time per completed request, microseconds. `mean_batch` is 0 if nothing counts it."""

    case: str
    server: str
    connections: int
    requests: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    errors: int
    cpu_us: float
    mean_batch: float
    resident_mb: float


@dataclass(frozen=True, slots=True)
class BareLoop:
    """The best setting of the loop without a server."""

    batch: int
    threads: int
    inferences_per_second: float


@dataclass(slots=True)
class Results:
    """One run; a cell is the median of `rounds` rounds of `seconds`.

    `bare` is the loop's best setting and its speed next to case (e). Memory is in MB (2**20 bytes). `beside` is the
    command of the other server, empty if there was none.
    """

    date: str
    machine: dict[str, object]
    seconds: int
    rounds: int = 1
    cells: list[Cell] = field(default_factory=list)
    bare: BareLoop | None = None
    loaded_mb: dict[str, float] = field(default_factory=dict)
    beside: str = ""
    seen: MachineLoad | None = None

    def cell(self, case: str, connections: int, server: str = "trident") -> Cell | None:
        for cell in self.cells:
            if (cell.case, cell.connections, cell.server) == (case, connections, server):
                return cell
        return None

    def note(self, rounds: list[Cell]) -> Cell:
        """Add the median of the rounds of one cell: the machine is not equally fast from second to second."""
        middle = {name: statistics.median([getattr(cell, name) for cell in rounds]) for name in _MEASURED}
        cell = dataclasses.replace(rounds[0], errors=sum(cell.errors for cell in rounds), **middle)
        self.cells.append(cell)
        return cell

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"


TITLES = {case.key: case.title for case in CASES}


def markdown(results: Results) -> str:
    """The page with all figures of a run."""
    parts = [machine_text(results), cells_table(results), bare_text(results)]
    parts.append(table(TARGET_HEADER, [target.row() for target in targets(results)]))
    return "\n\n".join(part for part in parts if part) + "\n"


def machine_text(results: Results) -> str:
    about = results.machine
    packages = about["packages"]
    versions = (
        ", ".join(f"{name} {version}" for name, version in packages.items()) if isinstance(packages, dict) else ""
    )
    return (
        f"{results.date}: {about['cpu']}, {about['cores']} cores, {about['memory_gb']} GB, "
        f"Linux {about['kernel']}, Python {about['python']}; {versions}. "
        "Server and load generator share the cores; a cell is the median of "
        f"{results.rounds} rounds of {results.seconds} s, the servers in turn; slow cases take longer."
        f"{machine_sentence(results.seen)}"
    )


def cells_table(results: Results) -> str:
    header = ["case", "connections", "server", "requests/s", "p50 ms", "p99 ms"]
    header += ["CPU µs/request", "mean batch", "errors", "MB"]
    return table(header, [cell_row(cell) for cell in results.cells])


def cell_row(cell: Cell) -> list[str]:
    batch = f"{cell.mean_batch:.1f}" if cell.mean_batch else ""
    figures = [cell.requests_per_second, cell.p50_ms, cell.p99_ms, cell.cpu_us]
    return [
        TITLES[cell.case],
        str(cell.connections),
        cell.server,
        *map(number, figures),
        batch,
        str(cell.errors),
        f"{cell.resident_mb:,.0f}",
    ]


def bare_text(results: Results) -> str:
    lines = []
    if results.bare:
        bare = results.bare
        lines.append(
            f"The bare `session.run` loop of the compute-bound graph: {bare.inferences_per_second:.1f} inferences/s, "
            f"best at batch size {bare.batch} with {bare.threads} threads."
        )
    if results.loaded_mb:
        sizes = ", ".join(f"{name} {size:,.0f} MB" for name, size in results.loaded_mb.items())
        lines.append(f"Resident memory with all models loaded and run once: {sizes}.")
    return " ".join(lines)


THIS, OTHER = "trident", "other"
_HEADER = ["case", "connections"]
_HEADER += ["requests/s, other", "Trident", "ratio", "CPU µs/request, other", "Trident", "ratio", "errors"]


def beside_markdown(results: Results) -> str:
    pairs = [
        (own, other)
        for own in results.cells
        if own.server == THIS and (other := results.cell(own.case, own.connections, OTHER))
    ]
    rate = geometric_mean(
        [own.requests_per_second / other.requests_per_second for own, other in pairs if other.requests]
    )
    cpu = geometric_mean([own.cpu_us / other.cpu_us for own, other in pairs if other.cpu_us])
    return (
        "\n\n".join(
            [
                machine_text(results),
                f"The other server: `{results.beside}`. Both serve the same model repository and get the same bodies. "
                "A ratio is Trident's figure over the other's: more requests/s and less CPU per request are better. "
                "CPU is that of all processes of a server.",
                table(_HEADER, [_row(own, other) for own, other in pairs]),
                f"Geometric means of the ratios: requests/s {rate:.2f}, CPU per request {cpu:.2f}.",
            ]
        )
        + "\n"
    )


def _row(own: Cell, other: Cell) -> list[str]:
    cells = [TITLES[own.case], str(own.connections)]
    for name in ("requests_per_second", "cpu_us"):
        over, under = getattr(own, name), getattr(other, name)
        cells += [number(under), number(over), f"{over / under if under else 0:.2f}"]
    return [*cells, str(own.errors + other.errors)]


MEMORY_ABOVE_BARE_MB = 80.0


def targets(results: Results) -> list[Target]:
    """All targets in the order of the cases, including those that this run did not measure."""

    def over(what: str, case: str, connections: int) -> float | None:
        own, other = results.cell(case, connections), results.cell(case, connections, "flask")
        under: float | None = getattr(other, what, None)
        return getattr(own, what) / under if own and under else None

    def faster(case: str, connections: int, goal: float) -> Target:
        ratio = over("requests_per_second", case, connections)
        return Target(case, f"requests/s over Flask's, {connections} connections", goal, True, ratio)

    found = []
    for case in ("a-json", "a-binary"):
        cell = results.cell(case, 64)
        found += [faster(case, 16, 5), faster(case, 64, 5)]
        found.append(Target(case, "CPU per request over Flask's, 16", 0.22, False, over("cpu_us", case, 16)))
        tail = cell.p99_ms / cell.p50_ms if cell else None
        found.append(Target(case, "p99 over p50, 64", 4, False, tail))
        found.append(Target(case, "errors, 64", 0, False, cell.errors if cell else None))
    for goal, cases, connection_counts in (
        (3, ("b",), (1, 16, 64)),
        (10, ("c-mean", "c-echo"), (1, 16, 64)),
        (5, ("d-json", "d-binary"), (16, 64)),
    ):
        found += [faster(case, connections, goal) for case in cases for connections in connection_counts]
    bare, cell = results.bare, results.cell("e", BARE_CONNECTIONS)
    bound = cell.requests_per_second / bare.inferences_per_second if cell and bare else None
    found.append(Target("e", "inferences/s over the bare loop's, 16", 0.95, True, bound))
    own_mb, bare_mb = results.loaded_mb.get("trident"), results.loaded_mb.get("bare loop")
    above = own_mb - bare_mb if own_mb is not None and bare_mb is not None else None
    found.append(Target("memory", "MB above the bare loop's, same models", MEMORY_ABOVE_BARE_MB, False, above))
    return found


def measure(server: Server, case: Case, *, connections: int, seconds: int) -> Cell:
    """One cell."""
    body, headers = case.body()
    url, asked = server.url(case.path), write_requests(case.key, body, headers=headers)
    run_client(url, asked, connections=connections, seconds=WARM_UP_S)
    server.settle()
    counts, cpu = server.counts(case.model), server.cpu_seconds()
    result = run_client(url, asked, connections=connections, seconds=seconds * case.stretch)
    cpu = server.cpu_seconds() - cpu
    server.settle()
    inferences, executions = (after - before for after, before in zip(server.counts(case.model), counts, strict=True))
    return Cell(
        case=case.key,
        server=server.name,
        connections=connections,
        requests=result.requests,
        requests_per_second=result.rate,
        p50_ms=result.p50_ms,
        p99_ms=result.p99_ms,
        errors=result.errors,
        cpu_us=cpu / result.requests * 1e6 if result.requests else 0.0,
        mean_batch=inferences / executions if executions else 0.0,
        resident_mb=server.resident_mb(),
    )


def bare_loop(model: Path, *, batch: int, threads: int, seconds: float = BARE_SECONDS) -> BareLoop:
    answer = _bare(["speed", str(model), f"--batch={batch}", f"--threads={threads}", f"--seconds={seconds}"])
    return BareLoop(batch, threads, answer["inferences_per_second"])


def best_bare_loop(model: Path, cores: int) -> BareLoop:
    """Find the fastest of a few batch sizes and thread counts."""
    thread_counts = sorted({1, max(1, cores // 2), cores})
    tried = [bare_loop(model, batch=batch, threads=threads) for batch in BARE_BATCHES for threads in thread_counts]
    return max(tried, key=lambda loop: loop.inferences_per_second)


def _bare(arguments: list[str]) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.servers.bare_loop", *arguments]
    finished = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=300)
    answer: dict[str, float] = json.loads(finished.stdout)
    return answer


class Rounds:
    """Measures servers that are already up."""

    def __init__(self, options: argparse.Namespace, models: Path, running: dict[str, Server], results: Results) -> None:
        self.options = options
        self.models = models
        self.running = running
        self.results = results
        self.cases = [case for case in CASES if {case.key, case.letter} & options.only]

    def measure(self) -> None:
        """Every case that was asked for."""
        self._check()
        for case in self.cases:
            for connections in self.options.connections:
                self._compare(case, connections)

    def _check(self) -> None:
        """Send every case to every server once: the answers must be right. The models are warm then, so read memory."""
        for server in self.running.values():
            for case in self.cases:
                check_outputs(server, case, *server.ask("POST", case.path, *case.body()))
            self.results.loaded_mb[server.name] = server.resident_mb()
        if not self.results.beside:
            paths = sorted(self.models.glob("*/1/model.onnx"))
            self.results.loaded_mb["bare loop"] = _bare(["memory", *map(str, paths)])["resident_mb"]

    def _compare(self, case: Case, connections: int) -> None:
        """Round after round, one server at a time while the others idle."""
        beside_bare = case.key == "e" and connections == BARE_CONNECTIONS
        before = self._bare_again() if beside_bare else None
        rounds: dict[str, list[Cell]] = {}
        for _ in range(self.options.rounds):
            for server in self.running.values():
                cell = measure(server, case, connections=connections, seconds=self.options.duration)
                rounds.setdefault(cell.server, []).append(cell)
        for cells in rounds.values():
            print(" ".join(cell_row(self.results.note(cells))), file=sys.stderr, flush=True)
        if before and self.results.bare:
            speed = (before + self._bare_again()) / 2
            self.results.bare = dataclasses.replace(self.results.bare, inferences_per_second=speed)

    def _bare_again(self) -> float:
        """Inferences/s of the loop at its best setting once more: the machine is not equally fast all the time."""
        best = self.results.bare
        if best is None:
            return 0.0
        model = self.models / "resnet" / "1" / "model.onnx"
        seconds = 2.0 * self.options.duration
        return bare_loop(model, batch=best.batch, threads=best.threads, seconds=seconds).inferences_per_second


FACTORIES = {"trident": servers.trident, "flask": servers.flask}
KEYS = {case.key for case in CASES} | {case.letter for case in CASES}
# The compute-bound case says nothing of a server: both run the same graph in the same library.
BESIDE_KEYS = {"a", "b", "c", "d", "f"}


def keys(text: str) -> set[str]:
    """The cases that `--only` names."""
    return set(names_among(sorted(KEYS))(text))


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


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
    parser.add_argument("--only", type=keys, help="letters or keys (a,c-mean); default all")
    parser.add_argument("--servers", type=names_among(tuple(FACTORIES)), help="trident,flask")
    parser.add_argument(
        "--beside",
        type=servers.beside_command,
        metavar="COMMAND",
        help="another v2 server, with {repo}, {http}, {grpc} and {metrics} for the repository and the ports",
    )
    add_publication_arguments(parser)
    options = parser.parse_args(arguments)
    options.only = options.only or (BESIDE_KEYS if options.beside else KEYS)
    options.servers = options.servers or (["trident"] if options.beside else list(FACTORIES))
    return options


def run(options: argparse.Namespace) -> Results:
    """Build the models, start the servers, measure, stop them."""
    results = Results(
        machine.today(), machine.describe(), options.duration, options.rounds, beside=options.beside or ""
    )
    build = BUILD / "beside" if options.beside else BUILD
    models = build / "models"
    repositories.build(models)
    if "e" in options.only:
        print("looking for the bare loop's best batch size and thread count", file=sys.stderr, flush=True)
        graph = repositories.build_resnet(models, batch=RESNET_BATCH)
        results.bare = best_bare_loop(graph, machine.cores())
        repositories.build_resnet(models, batch=results.bare.batch)
    with contextlib.ExitStack() as stack:
        running = {
            name: stack.enter_context(FACTORIES[name](models, build / f"{name}.log")) for name in options.servers
        }
        if options.beside:
            other = servers.beside(options.beside, models, build / "beside.log")
            running[other.name] = stack.enter_context(other)
        Rounds(options, models, running, results).measure()
    return results


def page(results: Results) -> str:
    return beside_markdown(results) if results.beside else markdown(results)


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    publication = Publication(options)
    results = run(options)
    results.seen = publication.load()
    publication.write("-beside" if options.beside else "", results.to_json(), page(results), results.seen)
    print(page(results))
