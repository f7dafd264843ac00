"""How many processes answer HTTP, and whether the engine has one of its own.

    0   engine and HTTP in one process: the least memory, and 60 microseconds less for a single request
    N   N processes of HTTP before one of the engine: parsing and running do not share an interpreter, batches grow,
        and a front end answers health whatever the engine does

The figures behind `auto` are in bench/README.md.
"""

from __future__ import annotations

from typing import NamedTuple

from app.settings.server import ServerSettings
from core.backends.devices.cpu_budget import available_cores

AUTO = "auto"
_LEAST_CORES = 4
_MOST = 4


class WorkerChoice(NamedTuple):
    """`reason` says why, for a person."""

    number: int
    reason: str

    def __str__(self) -> str:
        what = f"{self.number} HTTP workers before an engine process" if self.number else "all in one process"
        return f"{what}: {self.reason}"


def choose_workers(settings: ServerSettings, cores: float | None = None) -> WorkerChoice:
    """What --http-workers says, or what is best for so many cores; by default those of the container."""
    if settings.http_workers != AUTO:
        return WorkerChoice(int(settings.http_workers), "--http-workers says so")
    if settings.multi_model:
        return WorkerChoice(0, "a multi-model endpoint measures the memory of the process that has the models")
    available = available_cores() if cores is None else cores
    if available < _LEAST_CORES:
        return WorkerChoice(0, f"with {available:g} cores the way through a second process costs more than it wins")
    return WorkerChoice(min(_MOST, int(available) // 2), f"there are {available:g} cores")
