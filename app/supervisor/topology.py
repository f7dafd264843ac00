"""The topology of a server: how many HTTP workers it has, and whether the engine has its own process.

    0   engine and HTTP share one process: the least memory, and 60 microseconds less for a single request
    N   N HTTP workers in front of an engine process: parsing and execution do not share an interpreter, batches grow,
        and a front end answers health requests whatever the engine does

The measurements behind `auto` are in bench/README.md.
"""

from __future__ import annotations

from typing import NamedTuple

from app.settings.server import ServerSettings
from core.backends.devices.cpu_budget import available_cores

AUTO = "auto"
_MIN_CORES = 4
_MAX_WORKERS = 4


class Topology(NamedTuple):
    """`http_workers` is 0 if engine and HTTP share one process; `reason` tells a person why it was chosen."""

    http_workers: int
    reason: str

    def __str__(self) -> str:
        processes = f"{self.http_workers} HTTP workers in front of an engine process"
        return f"{processes if self.http_workers else 'all in one process'}: {self.reason}"


def choose_topology(settings: ServerSettings, cores: float | None = None) -> Topology:
    """The topology that --http-workers asks for, or the best one for `cores`; None: the cores of the container."""
    if settings.http_workers != AUTO:
        return Topology(int(settings.http_workers), "set by --http-workers")
    if settings.multi_model:
        return Topology(0, "a multi-model endpoint measures the memory of the process that has the models")
    available = available_cores() if cores is None else cores
    if available < _MIN_CORES:
        return Topology(0, f"with {available:g} cores a second process costs more than it gains")
    return Topology(min(_MAX_WORKERS, int(available) // 2), f"there are {available:g} cores")
