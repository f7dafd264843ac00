"""Loads that take turns of a fraction of a second, so that whatever else the machine does hits all of them alike.

Each load has its own client, which is stopped (SIGSTOP) while another load has its turn. No turn pays for a start.
"""

from __future__ import annotations

import math
import signal
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from bench import wrk
from bench.machine import LoadSeen, LoadWatch
from bench.servers.server import Server

WARM_UP_S = 1.0
DRAIN_S = 0.01
# A client must be told a duration; the turns end it earlier.
LONGEST_S = 3600
END_LIMIT_S = 60.0
# Standard deviations between the median and the ends of a 95 % interval, in halves of the square root of the count.
NORMAL_95 = 1.96


class NothingAnswered(RuntimeError):
    """In a whole turn; on a crowded machine the client or the server may not have had a core."""


class Load(Protocol):
    """What one client sends; `server` answers it with `model`."""

    @property
    def server(self) -> Server: ...

    @property
    def model(self) -> str: ...

    def start(self, *, connections: int, seconds: int) -> subprocess.Popen[str]:
        """Start the client, whose result `wrk.finish` reads. SIGINT ends it at once."""


@dataclass(frozen=True, slots=True)
class HttpLoad:
    """wrk sends `script` to `url`."""

    server: Server
    model: str
    url: str
    script: Path

    def start(self, *, connections: int, seconds: int) -> subprocess.Popen[str]:
        return wrk.start(self.url, self.script, connections=connections, seconds=seconds)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one load. `cpu_us` is the server's CPU time per request, microseconds."""

    requests_per_second: float
    cpu_us: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the ratios of pairs of turns, with the 95 % interval of that median."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"

    @classmethod
    def of(cls, over: Sequence[float], under: Sequence[float]) -> Ratio:
        """The ratios pair by pair. The interval is that of order statistics, which assumes no distribution."""
        ratios = sorted(above / below for above, below in zip(over, under, strict=True))
        reach = NORMAL_95 * math.sqrt(len(ratios)) / 2
        low = max(0, math.floor(len(ratios) / 2 - reach))
        high = min(len(ratios) - 1, math.ceil(len(ratios) / 2 + reach))
        return cls(statistics.median(ratios), ratios[low], ratios[high])


class Turns:
    """A context manager: all loads run and are warm on entry, and have ended on exit.

    After the exit, `errors` counts those of all loads, and `seen` says how much of the machine other processes took.
    """

    errors = 0
    seen: LoadSeen

    def __init__(
        self, loads: Mapping[str, Load], *, connections: int, seconds: float, warm_up_s: float = WARM_UP_S
    ) -> None:
        self.loads = loads
        self.warm_up_s = warm_up_s
        self.connections = connections
        self.seconds = seconds
        self._running: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Turns:
        self._watch = LoadWatch()
        try:
            for name, load in self.loads.items():
                self._running[name] = load.start(connections=self.connections, seconds=LONGEST_S)
                time.sleep(self.warm_up_s)
                self._drain(load)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._end()
        finally:
            self._kill()

    def round(self, number: int) -> dict[str, Turn]:
        """A turn of each load, in their order in even rounds and in the reverse order in odd ones.

        NothingAnswered if a server did not answer at all.
        """
        names = list(self.loads) if number % 2 == 0 else list(self.loads)[::-1]
        return {name: self._turn(self.loads[name], self._running[name]) for name in names}

    def _end(self) -> None:
        for process in self._running.values():
            _interrupt(process)
        self.errors = sum(wrk.finish(process).errors for process in self._running.values())
        self.seen = self._watch.seen()

    def _turn(self, load: Load, process: subprocess.Popen[str]) -> Turn:
        count, cpu_s = self._drain(load)
        start = time.perf_counter()
        process.send_signal(signal.SIGCONT)
        time.sleep(self.seconds)
        self._stop()
        took_s = time.perf_counter() - start
        count_after, cpu_after_s = self._drain(load)
        requests = count_after - count
        if requests == 0:
            raise NothingAnswered(f"{load.server.name} answered nothing in {took_s:.2f} s")
        return Turn(requests / took_s, (cpu_after_s - cpu_s) / requests * 1e6)

    def _drain(self, load: Load) -> tuple[int, float]:
        """Stop all clients and wait until the server has answered: its requests so far, and its CPU seconds."""
        before, _ = load.server.counts(load.model)
        while True:
            # Repeated, because a tool that continues all processes of the machine continues these too.
            self._stop()
            time.sleep(DRAIN_S)
            cpu_s = load.server.cpu_seconds()
            count, _ = load.server.counts(load.model)
            if count == before:
                return count, cpu_s
            before = count

    def _stop(self) -> None:
        for process in self._running.values():
            process.send_signal(signal.SIGSTOP)

    def _kill(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()


def _interrupt(load: subprocess.Popen[str]) -> None:
    """End a client; it still reports its result. Any of its threads may take a signal, and only the first heeds it."""
    deadline = time.monotonic() + END_LIMIT_S
    while load.poll() is None and time.monotonic() < deadline:
        load.send_signal(signal.SIGCONT)
        load.send_signal(signal.SIGINT)
        time.sleep(0.05)
