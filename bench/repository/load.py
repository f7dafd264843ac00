"""Loading while serving: requests to a model while other models are loaded, and while it is itself replaced."""

from __future__ import annotations

import itertools
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from bench import wrk
from bench.cases import Case
from bench.repository.models import WIDTH, build_big, build_scaled, replace_scaled
from bench.repository.servers import RepositoryServer
from bench.results import Figures

CASE = "under load"
SCALED = Case("scaled", "", "scaled", (("INPUT", "FP32", (WIDTH,)),), ("OUTPUT",), binary=True)
OTHERS = ("other_1", "other_2", "other_3")
OTHER_MEGABYTES = 16
WARM_UP_S = 2

QUIET = "nothing else"
CHANGING_OTHERS = "others loaded and unloaded"
REPLACING_IT = "the model itself replaced"


class LoadCase:
    """One server with `connections` on one model. `pause` is the time between two changes, in seconds."""

    def __init__(self, server: RepositoryServer, repository: Path, *, connections: int, seconds: int, pause: float):
        self.server = server
        self.repository = repository
        self.connections = connections
        self.seconds = seconds
        self.pause = pause
        self.changes: dict[str, list[float]] = {CHANGING_OTHERS: [], REPLACING_IT: []}
        self.loads: dict[str, list[wrk.Load]] = {QUIET: [], CHANGING_OTHERS: [], REPLACING_IT: []}
        body, headers = SCALED.body()
        self._script = wrk.write_script(repository.with_suffix(".lua"), body, headers)
        # No scale occurs twice: weights that had been there before would prove nothing.
        self._factors = itertools.count(2)
        self._other = itertools.cycle(OTHERS)

    def run(self, rounds: int) -> None:
        self._wrk(WARM_UP_S)
        for number in range(rounds):
            print(f"{CASE}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            self.loads[QUIET].append(self._wrk(self.seconds))
            self._beside(CHANGING_OTHERS, self._change_another)
            self._beside(REPLACING_IT, self._replace)

    def _wrk(self, seconds: int) -> wrk.Load:
        load = wrk.run(
            self.server.url(SCALED.path), self._script, connections=self.connections, seconds=max(1, seconds)
        )
        self.server.settle()
        return load

    def _beside(self, what: str, change: Callable[[], None]) -> None:
        """Run the same load while `change` is called again and again."""
        changes = 0
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(self._wrk, self.seconds)
            end = time.monotonic() + self.seconds
            while time.monotonic() < end and not load.done():
                change()
                changes += 1
                time.sleep(self.pause)
            self.loads[what].append(load.result())
        self.changes[what].append(changes)

    def _change_another(self) -> None:
        model = next(self._other)
        self.server.load(model)
        self.server.unload(model)

    def _replace(self) -> None:
        """Replace the weights by a rename and a load. RuntimeError if the answer does not use them."""
        factor = next(self._factors)
        replace_scaled(self.repository / SCALED.model, factor)
        self.server.load(SCALED.model)
        body, headers = SCALED.body()
        status, answered, answer = self.server.exchange("POST", SCALED.path, body, headers)
        if status != 200:
            raise RuntimeError(f"{self.server.name} answers {status} after a reload: {answer[:300]!r}")
        output = SCALED.answer(answer, answered["Inference-Header-Content-Length"])["OUTPUT"]
        if not np.allclose(output, np.multiply(SCALED.feeds()["INPUT"], factor)):
            raise RuntimeError(f"{self.server.name} answers with old weights after a reload")


def measure_load(results: Figures, build: Path, *, connections: int, seconds: int, pause: float, rounds: int) -> None:
    """Measure `seconds` three times a round: with no change, with other models changing, with the model replaced."""
    repository = build / "load"
    shutil.rmtree(repository, ignore_errors=True)
    build_scaled(repository / SCALED.model)
    for other in OTHERS:
        build_big(repository / other, megabytes=OTHER_MEGABYTES, file_megabytes=OTHER_MEGABYTES)
    options = ("--model-control-mode=explicit", f"--load-model={SCALED.model}")
    with RepositoryServer("trident", str(repository), build / "load.log", *options) as server:
        case = LoadCase(server, repository, connections=connections, seconds=seconds, pause=pause)
        case.run(rounds)
    _note(results, case)


def _note(results: Figures, case: LoadCase) -> None:
    for what, values in case.changes.items():
        results.note(CASE, f"changes; {what}", "changes", values)
    for what, loads in case.loads.items():
        results.note(CASE, f"requests/s; {what}", "requests/s", [load.requests / load.seconds for load in loads])
        results.note(CASE, f"p50; {what}", "ms", [load.p50_ms for load in loads])
        results.note(CASE, f"p99; {what}", "ms", [load.p99_ms for load in loads])
    quiet = statistics.median(load.p99_ms for load in case.loads[QUIET])
    for what, failed, p99 in _outcomes(case):
        results.at_most(CASE, f"failed requests; {what}", 0, failed)
        results.at_most(CASE, f"p99 over that with nothing else; {what}", 2, p99 / quiet)


def _outcomes(case: LoadCase) -> Iterator[tuple[str, int, float]]:
    """For each kind of change: the failed requests of all rounds, and the median of their p99 in ms."""
    for what in case.changes:
        loads = case.loads[what]
        yield what, sum(load.errors for load in loads), statistics.median(load.p99_ms for load in loads)
