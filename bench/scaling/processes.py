"""The processes of a server by what they do: their CPU time, and the cores that they are kept on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.machine_load import TICKS_PER_SECOND
from bench.servers.server import Server
from tests.contract.servers.processes import engines_of, front_ends_of


@dataclass(frozen=True, slots=True)
class Processes:
    """The process ids of a running server."""

    engines: tuple[int, ...]
    front_ends: tuple[int, ...]

    @classmethod
    def of(cls, server: Server) -> Processes:
        return cls(tuple(engines_of(server)), tuple(front_ends_of(server)))

    def engine_seconds(self) -> list[float]:
        """The CPU time of each engine so far."""
        return [_seconds(process) for process in self.engines]

    def front_end_seconds(self) -> list[float]:
        return [_seconds(process) for process in self.front_ends]

    def pin(self, cores: Sequence[int]) -> list[int]:
        """Keep each process on a core of its own, the engines first, while there are enough. Returns the cores for the
        client: those that are left, or the front ends' if none is.
        """
        engines = min(len(self.engines), len(cores))
        others = cores[engines:] or cores
        for index, process in enumerate(self.engines):
            pin(process, [cores[index % engines]])
        for index, process in enumerate(self.front_ends):
            pin(process, [others[index % len(others)]])
        return list(others[len(self.front_ends) :] or others)


def pin(process: int, cores: Iterable[int]) -> None:
    """As `taskset --all-tasks`: keep the process, with all of its threads, on `cores`."""
    for thread in os.listdir(f"/proc/{process}/task"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def _seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
