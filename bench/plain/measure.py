"""Measure one cell: one case on one server at one number of connections."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

from bench import wrk
from bench.cases import Case
from bench.servers.server import Server
from tests.project import ROOT

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
