"""Two loads on one server by turns of a fraction of a second: what else the machine does meanwhile hits both alike.

Each load is a wrk of its own, which is stopped (SIGSTOP) while the other has its turn; so no turn pays for a start.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from bench import machine, wrk
from bench.servers.server import Server

WARM_UP_S = 1.0
DRAIN_S = 0.01
# wrk must be told; it is ended before.
LONGEST_S = 3600
END_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one load. `cpu_us` is the server's CPU time per request, microseconds."""

    requests_per_second: float
    cpu_us: float


class Turns:
    """A context manager: both loads are there and warm on entry, gone on exit.

    `loads` are urls and scripts of wrk by name, two of them, which ask for the same `model`. After the exit `errors`
    are those of both, and `others` is the part of the machine, 0 to 1, that was neither idle nor the server's nor a
    client's.
    """

    errors = 0
    others = 0.0

    def __init__(
        self, server: Server, model: str, loads: Mapping[str, tuple[str, Path]], *, connections: int, seconds: float
    ) -> None:
        self.server = server
        self.model = model
        self.loads = loads
        self.connections = connections
        self.seconds = seconds
        self._running: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Turns:
        self._began = time.perf_counter()
        self._work = self._worked()
        try:
            for name, (url, script) in self.loads.items():
                self._running[name] = wrk.start(url, script, connections=self.connections, seconds=LONGEST_S)
                time.sleep(WARM_UP_S)
                self._drained()
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

    def pair(self, number: int) -> dict[str, Turn]:
        """A turn of each; the one goes first in even pairs, the other in odd ones."""
        names = list(self.loads) if number % 2 == 0 else list(self.loads)[::-1]
        return {name: self._turn(self._running[name]) for name in names}

    def _end(self) -> None:
        for process in self._running.values():
            _interrupt(process)
        self.errors = sum(wrk.finish(process).errors for process in self._running.values())
        machine_s, server_s, wrk_s = (now - then for now, then in zip(self._worked(), self._work, strict=True))
        room_s = (time.perf_counter() - self._began) * machine.cores()
        self.others = max(0.0, machine_s - server_s - wrk_s) / room_s

    def _turn(self, load: subprocess.Popen[str]) -> Turn:
        count, cpu_s = self._drained()
        start = time.perf_counter()
        load.send_signal(signal.SIGCONT)
        time.sleep(self.seconds)
        self._stop()
        took = time.perf_counter() - start
        count_after, cpu_after_s = self._drained()
        requests = count_after - count
        if requests == 0:
            raise RuntimeError(f"{self.server.name} answered nothing in {took:.2f} s")
        return Turn(requests / took, (cpu_after_s - cpu_s) / requests * 1e6)

    def _drained(self) -> tuple[int, float]:
        """Requests answered so far, and CPU seconds, when both loads stand still and all they sent is answered."""
        before, _ = self.server.counts(self.model)
        while True:
            # Again each time: whoever continues all processes of a machine continues these as well.
            self._stop()
            time.sleep(DRAIN_S)
            cpu_s = self.server.cpu_seconds()
            count, _ = self.server.counts(self.model)
            if count == before:
                return count, cpu_s
            before = count

    def _stop(self) -> None:
        for process in self._running.values():
            process.send_signal(signal.SIGSTOP)

    def _worked(self) -> tuple[float, float, float]:
        """CPU seconds so far: of the machine, of the server, of the clients that have ended."""
        clients = resource.getrusage(resource.RUSAGE_CHILDREN)
        return machine.busy_seconds(), self.server.cpu_seconds(), clients.ru_utime + clients.ru_stime

    def _kill(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()


def _interrupt(load: subprocess.Popen[str]) -> None:
    """End it; it still says what it saw. Any of its threads may take a signal, and only the first one heeds it."""
    deadline = time.monotonic() + END_LIMIT_S
    while load.poll() is None and time.monotonic() < deadline:
        load.send_signal(signal.SIGCONT)
        load.send_signal(signal.SIGINT)
        time.sleep(0.05)
