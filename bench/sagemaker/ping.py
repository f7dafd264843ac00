"""The platform's probe while clients keep the container fully busy."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from bench import wrk
from bench.cases import CASES
from bench.results import Figures
from bench.sagemaker.invocations import serve_simple
from bench.sagemaker.servers import Client, invocation

CASE = next(case for case in CASES if case.key == "a-binary")
CONNECTIONS = 64
INTERVAL_S = 0.02
QUIET_S = 2.0
GOAL_MS = 50.0


class Prober:
    """Sends /ping every INTERVAL_S on one connection, and keeps the times in milliseconds."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.times_ms: list[float] = []
        self.failed = 0

    def run(self, is_over: Callable[[], bool]) -> None:
        due = time.perf_counter()
        while not is_over():
            time.sleep(max(0.0, due - time.perf_counter()))
            start = time.perf_counter()
            status, _, _ = self._client.ask("GET", "/ping")
            end = time.perf_counter()
            self.failed += status != 200
            # Pings that fell due meanwhile had to wait too: a slow answer must not count only once.
            first_due = start
            while first_due < end:
                self.times_ms.append((end - first_due) * 1e3)
                first_due += INTERVAL_S
            due = first_due


def measure_ping(results: Figures, build: Path, *, seconds: int) -> None:
    """Measure the probe of an idle server, and under `seconds` of full load."""
    with serve_simple(build) as server, Client(server.sagemaker_port) as client, ThreadPoolExecutor(1) as pool:
        print(f"ping: {seconds} s of load", file=sys.stderr, flush=True)
        quiet, busy = Prober(client), Prober(client)
        end = time.perf_counter() + QUIET_S
        quiet.run(lambda: time.perf_counter() > end)
        script = wrk.write_script(build / "ping.lua", *invocation(CASE))
        load = pool.submit(wrk.run, server.invocations_url, script, connections=CONNECTIONS, seconds=seconds)
        busy.run(load.done)
        under = load.result()
    _note(results, "ping, nothing else", quiet)
    title = f"ping, {CONNECTIONS} connections"
    results.note(title, "requests/s meanwhile", "requests/s", [under.requests / under.seconds])
    p99_ms = _note(results, title, busy)
    results.at_most(title, "p99 of /ping, ms", GOAL_MS, p99_ms)
    results.at_most(title, "failed pings", 0, busy.failed)
    results.at_most(title, "failed invocations", 0, under.errors)
    results.remarks.append(f"`ping`: one every {INTERVAL_S * 1e3:.0f} ms; those that fell due during a slow one count.")


def _note(results: Figures, title: str, prober: Prober) -> float:
    p99_ms = float(np.percentile(prober.times_ms, 99))
    results.note(title, "/ping", "ms", prober.times_ms)
    results.note(title, "/ping, p99", "ms", [p99_ms])
    return p99_ms
