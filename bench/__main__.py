"""Run the benchmark: servers side by side on loopback, driven by `wrk`, every figure from the same run.

    make bench
    make bench BENCH_ARGS='--only a,d --connections 16 --duration 3'
    make bench BENCH_ARGS='repository --help'
    make bench BENCH_ARGS='sagemaker --help'
    make bench BENCH_ARGS='vertex --help'
    make bench BENCH_ARGS='workers --help'

Prints two tables and writes bench/results/<date>-<cpu>.json and .md. `repository` as the first argument measures the
model repository instead: downloads, starts, loads (bench/repository/run.py); `sagemaker` its container
(bench/sagemaker/run.py); `vertex` Vertex AI's (bench/vertex/run.py);
`workers` HTTP workers before an engine process (bench/workers/run.py).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import machine, wrk
from bench.cases import CASES, Case
from bench.compare import run as compare_run
from bench.models import served as repository
from bench.plain import measure, report
from bench.plain.results import Results
from bench.repository import run as repository_run
from bench.sagemaker import run as sagemaker_run
from bench.servers import server as servers
from bench.vertex import run as vertex_run
from bench.workers import run as workers_run

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "bench"
RESULTS = ROOT / "bench" / "results"
FAMILIES = {
    "compare": compare_run.main,
    "repository": repository_run.main,
    "sagemaker": sagemaker_run.main,
    "vertex": vertex_run.main,
    "workers": workers_run.main,
}
FACTORIES = {"trident": servers.trident, "flask": servers.flask}
GROWTH_CASES = ("a-json", "a-binary")
# Before the loop's best batch size is known, or where case (e) is not asked for.
RESNET_BATCH = 8
# Where case (e) is held against the bare loop.
BARE_CONNECTIONS = 16


# The cases in whose rounds the empty page, and the loop over sockets, are measured: they are held against each other.
BESIDE_EMPTY = "a-binary"
BESIDE_LOOP = "b"
KEYS = {case.key for case in CASES} | {case.letter for case in CASES} | {"empty", "loop", "memory"}


def keys(text: str) -> set[str]:
    """The cases that `--only` names; all that there are where it names none."""
    named = set(filter(None, text.split(","))) or KEYS
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


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--duration", type=int, default=3, help="seconds a round; slow cases take two or three times it"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each cell; its median counts")
    parser.add_argument(
        "--connections", type=numbers, default="1,16,64", help="numbers of connections, with commas between"
    )
    parser.add_argument(
        "--only", type=keys, default="", help="letters or keys (a,c-mean), empty, loop, memory; default all"
    )
    parser.add_argument(
        "--servers", type=server_names, default="trident,flask", help="which to start, with commas between"
    )
    parser.add_argument("--growth-requests", type=int, default=100_000, help="requests of the memory test")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the two result files")
    parser.add_argument("--update-readme", action="store_true", help="put the tables into README.md, too")
    parser.add_argument("--show", type=Path, help="measure nothing: print the tables of this JSON file")
    return parser.parse_args()


class Run:
    """One run of the benchmark over servers that are already up."""

    def __init__(
        self,
        options: argparse.Namespace,
        running: dict[str, servers.Server],
        results: Results,
        empty: servers.Server | None = None,
        loop: servers.Server | None = None,
    ) -> None:
        self.options = options
        self.running = running
        self.empty = empty
        self.loop = loop
        self.results = results
        self.models = BUILD / "models"

    def wanted(self, key: str) -> bool:
        return key in self.options.only or key.partition("-")[0] in self.options.only

    @property
    def cases(self) -> list[Case]:
        return [case for case in CASES if self.wanted(case.key)]

    def note(self, rounds: dict[str, list[measure.Cell]]) -> None:
        for cells in rounds.values():
            print(" ".join(report.cell_row(self.results.note(cells))), file=sys.stderr, flush=True)

    def check(self) -> None:
        """Every case once on every server: the answers are right, the models warm; then the memory is read."""
        for server in self.running.values():
            for case in CASES:
                measure.check_answer(server, case, self.models)
            self.results.loaded_mb[server.name] = server.resident_mb()
        paths = sorted(self.models.glob("*/1/model.onnx"))
        self.results.loaded_mb["bare loop"] = measure.bare_memory_mb(paths)

    def compare(self, case: Case) -> None:
        """The case at every number of connections, the servers in turn while the others are idle, round after round."""
        for connections in self.options.connections:
            beside_bare = case.key == "e" and connections == BARE_CONNECTIONS
            before = self.bare_again() if beside_bare else None
            rounds: dict[str, list[measure.Cell]] = {}
            for _ in range(self.options.rounds):
                for cell in self.one_round(case, connections):
                    rounds.setdefault(cell.server, []).append(cell)
            self.note(rounds)
            if before and self.results.bare:
                speed = (before + self.bare_again()) / 2
                self.results.bare = dataclasses.replace(self.results.bare, inferences_per_second=speed)

    def one_round(self, case: Case, connections: int) -> Iterator[measure.Cell]:
        seconds = self.options.duration
        for server in self.running.values():
            yield measure.measure(server, case, BUILD, connections=connections, seconds=seconds)
        if self.empty and case.key == BESIDE_EMPTY:
            yield measure.measure_empty(self.empty, BUILD, connections=connections, seconds=seconds)
        if self.loop and case.key == BESIDE_LOOP:
            yield measure.measure(self.loop, case, BUILD, connections=connections, seconds=seconds)

    def bare_again(self) -> float:
        """Inferences/s of the loop at its best setting once more: the machine is not equally fast all the time."""
        best = self.results.bare
        if best is None:
            return 0.0
        seconds = 2.0 * self.options.duration
        model = self.models / "resnet" / "1" / "model.onnx"
        again = measure.bare_loop(model, batch=best.batch, threads=best.threads, seconds=seconds)
        return again.inferences_per_second

    def all(self) -> None:
        self.check()
        own = self.running.get("trident")
        for case in self.cases:
            self.compare(case)
        if own and self.wanted("memory"):
            for case in CASES:
                if case.key in GROWTH_CASES:
                    requests = self.options.growth_requests
                    self.results.growths.append(measure.measure_growth(own, case, BUILD, requests=requests))


def new_results(options: argparse.Namespace) -> Results:
    return Results(datetime.date.today().isoformat(), machine.describe(), options.duration, options.rounds)


def run(options: argparse.Namespace) -> Results:
    """Build the models, start the servers, measure, stop them."""
    results = new_results(options)
    BUILD.mkdir(parents=True, exist_ok=True)
    models = BUILD / "models"
    batch = RESNET_BATCH
    if "e" in options.only:
        print("looking for the bare loop's best batch size and thread count", file=sys.stderr, flush=True)
        graph = repository.build_resnet(models, batch=batch)
        results.bare = measure.best_bare_loop(graph, machine.cores())
        batch = results.bare.batch
    repository.build(models, resnet_batch=batch)
    with contextlib.ExitStack() as stack:
        running = {
            name: stack.enter_context(FACTORIES[name](models, BUILD / f"{name}.log")) for name in options.servers
        }
        empty = stack.enter_context(servers.own_worker(BUILD / "empty.log")) if "empty" in options.only else None
        loop = stack.enter_context(servers.socket_loop(models, BUILD / "loop.log")) if "loop" in options.only else None
        Run(options, running, results, empty, loop).all()
    return results


def main() -> None:
    family = FAMILIES.get(sys.argv[1]) if len(sys.argv) > 1 else None
    if family:
        family(sys.argv[2:])
        return
    options = parse()
    file: Path = options.show
    if file:
        results = Results.read(file)
    else:
        try:
            wrk.require_wrk()
        except wrk.WrkMissing as missing:
            raise SystemExit(str(missing)) from None
        results = run(options)
        options.results.mkdir(parents=True, exist_ok=True)
        file = options.results / f"{results.date}-{machine.slug()}.json"
        file.write_text(results.to_json())
        file.with_suffix(".md").write_text(report.markdown(results))
        print(f"wrote {file} and .md", file=sys.stderr)
    print(report.markdown(results))
    if options.update_readme:
        full = file.with_suffix(".md").resolve().relative_to(ROOT)
        report.update_readme(ROOT / "README.md", report.brief(results, str(full)))


if __name__ == "__main__":
    main()
