"""The start of a server of one tiny model, in one process and with two front ends: time, CPU time, memory.

The servers take turns, so that they share the machine's fast and slow moments. Memory is read a second after the server
is ready: what is done then is in it; and again after requests. Resident memory counts pages that processes share once
for each of them, proportional memory (PSS) once.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.repository.servers import JSON_HEADERS, RepositoryServer
from bench.results import Figures
from tests.contract.servers.session import session_members
from tests.project import ROOT

SHAPES = {"one process": 0, "two front ends": 2}
REST_S = 1.0
REQUESTS = 200
REQUEST = json.dumps(
    {
        "inputs": [
            {"name": name, "shape": [1, 16], "datatype": "INT32", "data": list(range(16))}
            for name in ("INPUT0", "INPUT1")
        ]
    }
).encode()
MOST_READY_S = 0.5
MOST_RESIDENT_MB = 90.0
_MB = 1024


@dataclass(slots=True)
class Starts:
    """Of each start: seconds until ready, CPU seconds until then, and MB of all processes together."""

    ready: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    resident: list[float] = field(default_factory=list)
    proportional: list[float] = field(default_factory=list)
    resident_later: list[float] = field(default_factory=list)
    proportional_later: list[float] = field(default_factory=list)

    def add(self, server: RepositoryServer) -> None:
        self.ready.append(server.ready_seconds)
        self.cpu.append(server.cpu_seconds())
        time.sleep(REST_S)
        _note_memory(server, self.resident, self.proportional)
        for _ in range(REQUESTS):
            status, _, answer = server.exchange("POST", "/v2/models/simple/infer", REQUEST, JSON_HEADERS)
            if status != 200:
                raise RuntimeError(f"{server.name} answers an inference with {status}: {answer[:300]!r}")
        _note_memory(server, self.resident_later, self.proportional_later)


def measure_tiny(results: Figures, build: Path, *, starts: int, beside: Path | None) -> None:
    """Start each server `starts` times in each shape; `beside` is another checkout."""
    repository = build / "tiny"
    repository.mkdir(exist_ok=True)
    model = repository / "simple"
    if not model.is_symlink():
        model.symlink_to(ROOT / "deploy" / "models" / "simple")
    checkouts = {"trident": None} | ({"the other checkout": beside} if beside else {})
    for shape, workers in SHAPES.items():
        seen = {name: Starts() for name in checkouts}
        for number in range(starts):
            print(f"{shape}: start {number + 1} of {starts}", file=sys.stderr, flush=True)
            for name, checkout in checkouts.items():
                option = f"--http-workers={workers}"
                log = build / "trident.log"
                with RepositoryServer(name, str(repository), log, option, checkout=checkout) as server:
                    seen[name].add(server)
        for name, of_server in seen.items():
            _note(results, f"{shape}, {name}", of_server)
        if not workers:
            own = seen["trident"]
            results.at_most(shape, "start to ready, s", MOST_READY_S, sorted(own.ready)[len(own.ready) // 2])
            results.at_most(shape, "resident, all processes, MB", MOST_RESIDENT_MB, max(own.resident))


def _note(results: Figures, title: str, seen: Starts) -> None:
    results.note(title, "start to ready", "s", seen.ready)
    results.note(title, "CPU time until ready", "s", seen.cpu)
    results.note(title, "resident, all processes", "MB", seen.resident)
    results.note(title, "proportional (PSS), all processes", "MB", seen.proportional)
    results.note(title, f"resident after {REQUESTS} requests", "MB", seen.resident_later)
    results.note(title, f"proportional after {REQUESTS} requests", "MB", seen.proportional_later)


def _note_memory(server: RepositoryServer, resident: list[float], proportional: list[float]) -> None:
    processes = session_members(server.process.pid)
    resident.append(sum(_mb(process, "Rss:") for process in processes))
    proportional.append(sum(_mb(process, "Pss:") for process in processes))


def _mb(process: int, row: str) -> float:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(row)) / _MB
