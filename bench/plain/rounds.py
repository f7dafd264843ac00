"""The rounds of the plain benchmark: every case on every running server, in turn."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.cases import CASES, Case
from bench.plain import measure, report
from bench.plain.measure import Cell
from bench.plain.results import Results
from bench.servers.server import Server

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
                    self.results.growths.append(measure.measure_growth(own, case, self._build, requests=requests))

    @property
    def _cases(self) -> list[Case]:
        return [case for case in CASES if self._wanted(case.key)]

    def _wanted(self, key: str) -> bool:
        return key in self.options.only or key.partition("-")[0] in self.options.only

    def _check(self) -> None:
        """Send every case to every server once: the answers must be right. The models are warm then, so read memory."""
        for server in self.running.values():
            for case in self._cases:
                measure.check_answer(server, case, self._models)
            self.results.loaded_mb[server.name] = server.resident_mb()
        if not self.results.beside:
            paths = sorted(self._models.glob("*/1/model.onnx"))
            self.results.loaded_mb["bare loop"] = measure.bare_memory_mb(paths)

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
                print(" ".join(report.cell_row(self.results.note(cells))), file=sys.stderr, flush=True)
            if before and self.results.bare:
                speed = (before + self._bare_again()) / 2
                self.results.bare = dataclasses.replace(self.results.bare, inferences_per_second=speed)

    def _one_round(self, case: Case, connections: int) -> Iterator[Cell]:
        seconds = self.options.duration
        for server in self.running.values():
            yield measure.measure(server, case, self._build, connections=connections, seconds=seconds)
        if self.empty and case.key == BESIDE_EMPTY:
            yield measure.measure_empty(self.empty, self._build, connections=connections, seconds=seconds)
        if self.loop and case.key == BESIDE_LOOP:
            yield measure.measure(self.loop, case, self._build, connections=connections, seconds=seconds)

    def _bare_again(self) -> float:
        """Inferences/s of the loop at its best setting once more: the machine is not equally fast all the time."""
        best = self.results.bare
        if best is None:
            return 0.0
        seconds = 2.0 * self.options.duration
        model = self._models / "resnet" / "1" / "model.onnx"
        again = measure.bare_loop(model, batch=best.batch, threads=best.threads, seconds=seconds)
        return again.inferences_per_second
