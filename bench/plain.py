"""Measure one cell: one case on one server at one number of connections."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime

from bench import machine, wrk
from bench.cases import CASES, Case
from bench.machine import LoadSeen
from bench.models import served
from bench.results import (
    Publication,
    add_publication_arguments,
    machine_sentence,
    number,
    positive,
    table,
    update_readme,
)
from bench.servers import server as servers
from bench.servers.server import Server
from bench.target import TARGET_HEADER, Target
from tests.project import ROOT

_MEASURED = ("requests", "requests_per_second", "p50_ms", "p99_ms", "cpu_us", "mean_batch", "resident_mb")


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
    growths: list[Growth] = field(default_factory=list)
    loaded_mb: dict[str, float] = field(default_factory=dict)
    beside: str = ""
    seen: LoadSeen | None = None

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

    @classmethod
    def read(cls, path: Path) -> Results:
        document = json.loads(path.read_text())
        document["cells"] = [Cell(**cell) for cell in document["cells"]]
        document["growths"] = [Growth(**growth) for growth in document["growths"]]
        document["bare"] = document["bare"] and BareLoop(**document["bare"])
        document["seen"] = document.get("seen") and LoadSeen(**document["seen"])
        return cls(**document)


TITLES = {case.key: case.title for case in CASES} | {"empty": "empty GET"}
MARKS = ("<!-- bench: begin -->", "<!-- bench: end -->")


def markdown(results: Results) -> str:
    """The page with all figures of a run."""
    parts = [machine_text(results), cells_table(results), bare_text(results)]
    parts.append(table(TARGET_HEADER, [target.row() for target in targets(results)]))
    return "\n\n".join(part for part in parts if part) + "\n"


def brief(results: Results, full: str) -> str:
    """The text for README: a row for each case and server. `full` is the path of the page with all figures."""
    servers = sorted({(cell.case, cell.server) for cell in results.cells}, key=_place(results))
    counts = sorted({cell.connections for cell in results.cells})
    header = ["case", "server", *(f"requests/s, {count} conn." for count in counts)]
    header += [f"p99 ms, {counts[-1]} conn.", f"CPU µs/request, {counts[-1]} conn."]
    rows = []
    for case, server in servers:
        cells = {cell.connections: cell for cell in results.cells if (cell.case, cell.server) == (case, server)}
        last = cells.get(counts[-1])
        figures = [cells[count].requests_per_second if count in cells else None for count in counts]
        figures += [last.p99_ms, last.cpu_us] if last else [None, None]
        rows.append([TITLES[case], server, *("" if figure is None else number(figure) for figure in figures)])
    more = f"All figures of this run, and its targets: [{full}]({full})."
    return "\n\n".join([machine_text(results), table(header, rows), bare_text(results), more]) + "\n"


def machine_text(results: Results) -> str:
    about = results.machine
    packages = about["packages"]
    versions = (
        ", ".join(f"{name} {version}" for name, version in packages.items()) if isinstance(packages, dict) else ""
    )
    return (
        f"{results.date}: {about['cpu']}, {about['cores']} cores, {about['memory_gb']} GB, "
        f"Linux {about['kernel']}, Python {about['python']}; {versions}. "
        "Server and load generator (`wrk`, one thread) share the cores; a cell is the median of "
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


def _place(results: Results) -> Callable[[tuple[str, str]], int]:
    """The position at which a case's server first stands among the cells."""
    order = [(cell.case, cell.server) for cell in results.cells]
    return order.index


THIS, OTHER = "trident", "other"
_HEADER = ["case", "connections"]
_HEADER += ["requests/s, other", "Trident", "ratio", "CPU µs/request, other", "Trident", "ratio", "errors"]


def beside_markdown(results: Results) -> str:
    pairs = [(own, other) for own in results.cells if own.server == THIS for other in [_other(results, own)] if other]
    rate, cpu = (geometric_mean([_ratio(of, *pair) for pair in pairs]) for of in (_rate, _cpu))
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


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers; values that are not positive (a figure that was not measured) are left out. NaN of none."""
    logarithms = [math.log(value) for value in values if value > 0]
    return math.exp(statistics.fmean(logarithms)) if logarithms else math.nan


def _other(results: Results, own: Cell) -> Cell | None:
    return results.cell(own.case, own.connections, OTHER)


def _row(own: Cell, other: Cell) -> list[str]:
    return [
        TITLES[own.case],
        str(own.connections),
        number(other.requests_per_second),
        number(own.requests_per_second),
        f"{_ratio(_rate, own, other):.2f}",
        number(other.cpu_us),
        number(own.cpu_us),
        f"{_ratio(_cpu, own, other):.2f}",
        str(own.errors + other.errors),
    ]


def _ratio(of: Callable[[Cell], float], own: Cell, other: Cell) -> float:
    """Zero where the other server's figure is zero."""
    return of(own) / of(other) if of(other) else 0.0


def _rate(cell: Cell) -> float:
    return cell.requests_per_second


def _cpu(cell: Cell) -> float:
    return cell.cpu_us


GROWTH_MB = 2.0
MEMORY_ABOVE_BARE_MB = 80.0


def targets(results: Results) -> list[Target]:
    """All targets in the order of the cases, including those that this run did not measure."""
    found = [*_add_sub(results, "a-json"), *_add_sub(results, "a-binary")]
    found += [_faster(results, "b", connections, 3) for connections in (1, 16, 64)]
    found += [_faster(results, case, connections, 10) for case in ("c-mean", "c-echo") for connections in (1, 16, 64)]
    found += [_faster(results, case, connections, 5) for case in ("d-json", "d-binary") for connections in (16, 64)]
    return [*found, _compute_bound(results), *_memory(results)]


def _add_sub(results: Results, case: str) -> Iterator[Target]:
    yield _faster(results, case, 16, 5)
    yield _faster(results, case, 64, 5)
    own = _target_cpu(results, case, 16)
    yield Target(
        case,
        "CPU per request over Flask's, 16",
        0.22,
        False,
        _target_ratio(own, _target_cpu(results, case, 16, "flask")),
    )
    empty = _target_cpu(results, "empty", 16, "own worker")
    yield Target(case, "CPU per request over an empty GET's, 16", 4.5, False, _target_ratio(own, empty))
    cell = results.cell(case, 64)
    yield Target(case, "p99 over p50, 64", 4, False, _target_ratio(cell.p99_ms, cell.p50_ms) if cell else None)
    yield Target(case, "errors, 64", 0, False, cell.errors if cell else None)


def _compute_bound(results: Results) -> Target:
    bare = results.bare.inferences_per_second if results.bare else None
    return Target(
        "e", "inferences/s over the bare loop's, 16", 0.95, True, _target_ratio(_target_rate(results, "e", 16), bare)
    )


def _memory(results: Results) -> Iterator[Target]:
    for growth in results.growths:
        grown = growth.after_mb - growth.before_mb
        yield Target("memory", f"MB grown in {growth.requests:,} requests of {growth.case}", GROWTH_MB, False, grown)
    own, bare = results.loaded_mb.get("trident"), results.loaded_mb.get("bare loop")
    above = own - bare if own is not None and bare is not None else None
    yield Target("memory", "MB above the bare loop's, same models", MEMORY_ABOVE_BARE_MB, False, above)


def _faster(results: Results, case: str, connections: int, goal: float) -> Target:
    measured = _target_ratio(
        _target_rate(results, case, connections), _target_rate(results, case, connections, "flask")
    )
    return Target(case, f"requests/s over Flask's, {connections} connections", goal, True, measured)


def _target_ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None


def _target_rate(results: Results, case: str, connections: int, server: str = "trident") -> float | None:
    cell = results.cell(case, connections, server)
    return cell.requests_per_second if cell else None


def _target_cpu(results: Results, case: str, connections: int, server: str = "trident") -> float | None:
    cell = results.cell(case, connections, server)
    return cell.cpu_us if cell else None


EMPTY = "/"
WARM_UP_S = 1
RELATIVE_TOLERANCE = 1e-3
ABSOLUTE_TOLERANCE = 1e-5
BARE_SECONDS = 4.0
BARE_BATCHES = (1, 2, 4, 8, 16)
GROWTH_WARM_UP_REQUESTS = 20_000
GROWTH_STEP_S = 5


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


@dataclass(frozen=True, slots=True)
class Growth:
    """Resident memory before and after a number of requests; a warm-up precedes both."""

    case: str
    requests: int
    before_mb: float
    after_mb: float
    errors: int


def check_answer(server: Server, case: Case, repository: Path, *, graph: str = "") -> None:
    """Compare one answer with the output of a session of the case's model, or of the model called `graph`.

    RuntimeError if they differ.
    """
    body, headers = case.body()
    status, answered, answer = server.exchange("POST", case.path, body, headers)
    if status != 200:
        raise RuntimeError(f"{server.name} answers {case.key} with {status}: {answer[:300]!r}")
    outputs = case.answer(answer, answered["Inference-Header-Content-Length"])
    session = onnxruntime.InferenceSession(repository / (graph or case.model) / "1" / "model.onnx")
    expected = session.run(list(case.outputs), case.feeds())
    for name, array in zip(case.outputs, expected, strict=True):
        if outputs[name].shape != array.shape or not np.allclose(
            outputs[name], array, RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE
        ):
            raise RuntimeError(f"{server.name} answers {case.key} wrongly in {name}")


def measure(server: Server, case: Case, scripts: Path, *, connections: int, seconds: int) -> Cell:
    body, headers = case.body()
    script = wrk.write_script(scripts / f"{case.key}.lua", body, headers)
    return _cell(server, case.key, case.model, case.path, script, connections, seconds * case.stretch)


def measure_empty(server: Server, scripts: Path, *, connections: int, seconds: int) -> Cell:
    """Measure an empty GET: the cost of a request that does nothing."""
    script = wrk.write_script(scripts / "empty.lua")
    return _cell(server, "empty", "", EMPTY, script, connections, seconds)


def _cell(server: Server, key: str, model: str, path: str, script: Path, connections: int, seconds: int) -> Cell:
    url = server.url(path)
    wrk.run(url, script, connections=connections, seconds=WARM_UP_S)
    server.settle()
    counts = server.counts(model) if model else (0, 0)
    cpu = server.cpu_seconds()
    load = wrk.run(url, script, connections=connections, seconds=seconds)
    cpu = server.cpu_seconds() - cpu
    server.settle()
    counts_after = server.counts(model) if model else (0, 0)
    inferences, executions = (after - before for after, before in zip(counts_after, counts, strict=True))
    return Cell(
        case=key,
        server=server.name,
        connections=connections,
        requests=load.requests,
        requests_per_second=load.requests / load.seconds,
        p50_ms=load.p50_ms,
        p99_ms=load.p99_ms,
        errors=load.errors,
        cpu_us=cpu / load.requests * 1e6 if load.requests else 0.0,
        mean_batch=inferences / executions if executions else 0.0,
        resident_mb=server.resident_mb(),
    )


def measure_growth(server: Server, case: Case, scripts: Path, *, requests: int) -> Growth:
    """Measure resident memory before and after at least `requests` requests at 16 connections."""
    body, headers = case.body()
    script = wrk.write_script(scripts / f"{case.key}.lua", body, headers)
    url = server.url(case.path)

    def send(least: int) -> tuple[int, int]:
        sent = errors = 0
        while sent < least:
            load = wrk.run(url, script, connections=16, seconds=GROWTH_STEP_S)
            if load.requests == 0:
                raise RuntimeError(f"{server.name} answered nothing of {case.key} in {GROWTH_STEP_S} s")
            sent += load.requests
            errors += load.errors
        server.settle()
        return sent, errors

    send(min(GROWTH_WARM_UP_REQUESTS, requests))
    before = server.resident_mb()
    sent, errors = send(requests)
    return Growth(case.key, sent, before, server.resident_mb(), errors)


def bare_loop(model: Path, *, batch: int, threads: int, seconds: float = BARE_SECONDS) -> BareLoop:
    answer = _bare(["speed", str(model), f"--batch={batch}", f"--threads={threads}", f"--seconds={seconds}"])
    return BareLoop(batch, threads, answer["inferences_per_second"])


def best_bare_loop(model: Path, cores: int) -> BareLoop:
    """Find the fastest of a few batch sizes and thread counts."""
    thread_counts = sorted({1, max(1, cores // 2), cores})
    tried = [bare_loop(model, batch=batch, threads=threads) for batch in BARE_BATCHES for threads in thread_counts]
    return max(tried, key=lambda loop: loop.inferences_per_second)


def bare_memory_mb(models: Sequence[Path]) -> float:
    """The resident memory of a process that has loaded all `models` and run each once."""
    return _bare(["memory", *map(str, models)])["resident_mb"]


def _bare(arguments: list[str]) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.servers.bare_loop", *arguments]
    finished = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=300)
    answer: dict[str, float] = json.loads(finished.stdout)
    return answer


GROWTH_CASES = ("a-json", "a-binary")
# The number of connections at which case (e) is compared with the bare loop.
BARE_CONNECTIONS = 16
# The empty page and the loop over sockets are measured in the rounds of these cases, with which they are compared.
BESIDE_EMPTY = "a-binary"
BESIDE_LOOP = "b"


class Rounds:
    """Measures servers that are already up. `build` contains their repository, `models`, and the clients' scripts."""

    def __init__(
        self,
        options: argparse.Namespace,
        build: Path,
        running: dict[str, Server],
        results: Results,
        empty: Server | None = None,
        loop: Server | None = None,
    ) -> None:
        self.options = options
        self.running = running
        self.empty = empty
        self.loop = loop
        self.results = results
        self._build = build
        self._models = build / "models"

    def measure(self) -> None:
        """Every case that was asked for, then the growth of memory."""
        self._check()
        for case in self._cases:
            self._compare(case)
        own = self.running.get("trident")
        if own and self._wanted("memory"):
            for case in CASES:
                if case.key in GROWTH_CASES:
                    requests = self.options.growth_requests
                    self.results.growths.append(measure_growth(own, case, self._build, requests=requests))

    @property
    def _cases(self) -> list[Case]:
        return [case for case in CASES if self._wanted(case.key)]

    def _wanted(self, key: str) -> bool:
        return key in self.options.only or key.partition("-")[0] in self.options.only

    def _check(self) -> None:
        """Send every case to every server once: the answers must be right. The models are warm then, so read memory."""
        for server in self.running.values():
            for case in self._cases:
                check_answer(server, case, self._models)
            self.results.loaded_mb[server.name] = server.resident_mb()
        if not self.results.beside:
            paths = sorted(self._models.glob("*/1/model.onnx"))
            self.results.loaded_mb["bare loop"] = bare_memory_mb(paths)

    def _compare(self, case: Case) -> None:
        """The case at every number of connections: round after round, one server at a time while the others idle."""
        for connections in self.options.connections:
            beside_bare = case.key == "e" and connections == BARE_CONNECTIONS
            before = self._bare_again() if beside_bare else None
            rounds: dict[str, list[Cell]] = {}
            for _ in range(self.options.rounds):
                for cell in self._one_round(case, connections):
                    rounds.setdefault(cell.server, []).append(cell)
            for cells in rounds.values():
                print(" ".join(cell_row(self.results.note(cells))), file=sys.stderr, flush=True)
            if before and self.results.bare:
                speed = (before + self._bare_again()) / 2
                self.results.bare = dataclasses.replace(self.results.bare, inferences_per_second=speed)

    def _one_round(self, case: Case, connections: int) -> Iterator[Cell]:
        seconds = self.options.duration
        for server in self.running.values():
            yield measure(server, case, self._build, connections=connections, seconds=seconds)
        if self.empty and case.key == BESIDE_EMPTY:
            yield measure_empty(self.empty, self._build, connections=connections, seconds=seconds)
        if self.loop and case.key == BESIDE_LOOP:
            yield measure(self.loop, case, self._build, connections=connections, seconds=seconds)

    def _bare_again(self) -> float:
        """Inferences/s of the loop at its best setting once more: the machine is not equally fast all the time."""
        best = self.results.bare
        if best is None:
            return 0.0
        seconds = 2.0 * self.options.duration
        model = self._models / "resnet" / "1" / "model.onnx"
        again = bare_loop(model, batch=best.batch, threads=best.threads, seconds=seconds)
        return again.inferences_per_second


#         make bench
#         make bench BENCH_ARGS='--only a,d --connections 16 --duration 3'
#         python -m bench --beside 'tritonserver --model-repository={repo} --http-port={http} --grpc-port={grpc}
#                 --metrics-port={metrics}'
#
# Prints its tables and writes bench/results/<date>-<cpu>.json and .md. `--beside` measures another v2 server instead
# of the Flask server: the same rounds, bodies and wrk, one row with the ratios for each case.


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
        results.bare = best_bare_loop(graph, machine.cores())
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
    return beside_markdown(results) if results.beside else markdown(results)


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
        update_readme(ROOT / "README.md", brief(results, str(full)), MARKS)
