"""The topology of a server: how many HTTP workers it has, and whether engines have their own processes.

    0   engine and HTTP share one process: the least memory, and 60 microseconds less for a single request
    N   N HTTP workers in front of an engine process: parsing and execution do not share an interpreter, batches grow,
        and a front end answers health requests whatever the engine does

Several engines share the requests of all HTTP workers. The measurements behind `auto` are in bench/README.md and
docs/scale.md.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

from trident.app.settings.server import ServerSettings
from trident.core.backends.cpu_budget import available_cores, share_of
from trident.core.interprocess.restarts import SharedNote
from trident.core.lifecycle.options import EnginePlace
from trident.core.observability.hardware import gpu_uuids

# The libraries that every framework needs for GPUs come as this package; an installation for processors has none.
_GPU_PACKAGE = "nvidia"


def usable_gpus(visible: str | None) -> int:
    """The number of GPUs among `visible` (the value of CUDA_VISIBLE_DEVICES) that models may run on.

    It asks the management library, which survives a fork, and not CUDA. 0 for an installation for processors.
    """
    return len(gpu_uuids(visible)) if find_spec(_GPU_PACKAGE) is not None else 0


def gpus_of_engine(place: EnginePlace, uuids: Sequence[str]) -> str | None:
    """The value of CUDA_VISIBLE_DEVICES for the engine at `place`; None: it sees all that the server sees.

    The GPUs are divided; if there are more engines than GPUs, several engines share one.
    """
    if place.count == 1 or len(uuids) < 2 or not all(uuids):
        return None
    return ",".join(share_of(uuids, place.index, place.count))


AUTO = "auto"
_MIN_CORES = 4
_MAX_WORKERS = 4
# The cores that one engine and its HTTP workers keep busy with small models: three to four (docs/scale.md).
CORES_PER_ENGINE = 4
# Of the cores of a server with several engines. A request costs the front end about twice what it costs the engine; the
# rest of the cores is for the kernel's network stack.
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
        return Topology(0, "a multi-model endpoint needs the memory of further processes for its models")
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


# A child starts with its parent's signal handlers. Until it has installed its own, a signal would be put into its copy
# of the parent's queue, which is never read, and the parent would wait for the child until it kills it.
#
# A child that starts threads before it has its handlers notes the signals instead. Threads keep the signals blocked
# that were blocked when they began, and so do the processes that they start, which SIGTERM could then not end.


# The main process stops the engine with this signal. Not with SIGTERM, which systemd, dumb-init and others send to all
# processes at once: the engine must outlive the front ends, which have requests in flight.
STOP_ENGINE = signal.SIGRTMIN
# Before the front ends stop, this one ends the engine's loads: a front end may wait for one that would never end.
END_LOADS = signal.SIGRTMIN + 1
_noted: list[int] = []
_OF_ENGINE = frozenset((STOP_ENGINE, END_LOADS))
_HELD = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1)) | _OF_ENGINE


def hold_stop_signals() -> None:
    """Block the stop signals in this thread and its forked children, until each calls `release_stop_signals`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def release_stop_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)


def note_stop_signals() -> None:
    """Note stop signals in a new worker, blocked ones included, until `send_noted_signals` sends them."""
    for number in _HELD - _OF_ENGINE:
        signal.signal(number, lambda number, frame: _noted.append(number))
    release_stop_signals()


def send_noted_signals() -> None:
    """Send this process the signals that it has noted. Call it when it has its own handlers."""
    while _noted:
        os.kill(os.getpid(), _noted.pop(0))


_SIZE = (1 << 16) - 1


class FailureNote:
    """A text in memory shared with all processes forked later. The main process prints it as its last line, after the
    last lines of the others."""

    def __init__(self) -> None:
        self._note = SharedNote(_SIZE)

    def write(self, reason: str) -> None:
        """Write `reason`, shortened to 64 KiB; the last one counts."""
        self._note.write(reason.encode("utf-8", "replace"))

    def read(self) -> str:
        return self._note.read().decode("utf-8", "ignore")
