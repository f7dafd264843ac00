"""The topology of a server: how many HTTP workers it has, and whether engines have their own processes.

    0   engine and HTTP share one process: the least memory, and 60 microseconds less for a single request
    N   N HTTP workers in front of an engine process: parsing and execution do not share an interpreter, batches grow,
        and a front end answers health requests whatever the engine does

Several engines share the requests of all HTTP workers. The measurements behind `auto` are in bench/README.md and
docs/scaling.md.
"""

from __future__ import annotations

from typing import NamedTuple

from app.settings.server import ServerSettings
from app.supervisor.engine_devices import usable_gpus
from core.backends.devices.cpu_budget import available_cores

AUTO = "auto"
_MIN_CORES = 4
_MAX_WORKERS = 4
# The cores that one engine and its HTTP workers keep busy with small models: three to four (docs/scaling.md).
CORES_PER_ENGINE = 4
# Of the cores of a server with several engines. A request costs the front end about twice what it costs the engine; the
# rest of the cores is for the system's part of the network.
_WORKERS_SHARE = 5 / 8


class Topology(NamedTuple):
    """`http_workers` is 0 if engine and HTTP share one process; `reason` tells a person why it was chosen."""

    http_workers: int
    reason: str
    engines: int = 1

    def __str__(self) -> str:
        engines = "an engine process" if self.engines == 1 else f"{self.engines} engine processes"
        processes = f"{self.http_workers} HTTP workers in front of {engines}"
        return f"{processes if self.http_workers else 'all in one process'}: {self.reason}"


def choose_topology(settings: ServerSettings, cores: float | None = None, gpus: int | None = None) -> Topology:
    """The topology that --http-workers and --engines ask for, or the best one for `cores` and `gpus`; None: those of
    the container.
    """
    available = available_cores() if cores is None else cores
    engines = _engines(settings, available, gpus)
    if settings.http_workers != AUTO:
        return Topology(int(settings.http_workers), "set by --http-workers", engines)
    reason = f"there are {available:g} cores"
    if engines > 1:
        return Topology(max(engines, int(available * _WORKERS_SHARE)), reason, engines)
    if settings.multi_model:
        return Topology(0, "a multi-model endpoint leaves the memory of further processes to its models")
    if available < _MIN_CORES:
        return Topology(0, f"with {available:g} cores a second process costs more than it gains")
    return Topology(min(_MAX_WORKERS, int(available) // 2), reason)


def _engines(settings: ServerSettings, cores: float, gpus: int | None) -> int:
    if settings.engines != AUTO:
        return int(settings.engines)
    if settings.multi_model or settings.http_workers == "0":
        return 1
    devices = usable_gpus(settings.visible_gpus) if gpus is None else gpus
    return devices or max(1, int(cores) // CORES_PER_ENGINE)
