"""The limits of this container or machine: cores, memory, open files, and the memory of the HTTP workers."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

from app.commands.doctor.report import Level, Line
from app.commands.doctor.sizes import size_text
from app.process.file_limit import connection_places
from app.process.temporary_directory import IN_MEMORY, NoTemporaryDirectory, temporary_directory
from app.settings.server import ServerSettings
from app.supervisor.topology import Topology, choose_topology
from core.backends.devices.cpu_budget import available_cores, plan_threads
from core.observability.hardware.host_memory import MemoryRoom, host_room

_AREA = "Limits"
_FEW_CONNECTIONS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReading:
    """`cores` are those that the process may use, `affinity` those on which it may run at all.

    `room` is None if the system does not tell. `open_files` is the hard limit. `temporary` is the directory of
    temporary files, empty if there is none. `in_memory_bytes` is the size of /dev/shm, 0 without it.
    """

    cores: float
    affinity: int
    room: MemoryRoom | None
    open_files: int
    temporary: str
    in_memory_bytes: int
    topology: Topology
    worker_bytes: int


def read_limits(settings: ServerSettings) -> LimitReading:
    try:
        temporary = temporary_directory()
    except NoTemporaryDirectory:
        temporary = ""
    try:
        status = os.statvfs(IN_MEMORY)
        in_memory = status.f_blocks * status.f_frsize
    except OSError:
        in_memory = 0
    return LimitReading(
        cores=available_cores(),
        affinity=len(os.sched_getaffinity(0)),
        room=host_room(),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        temporary=temporary,
        in_memory_bytes=in_memory,
        topology=choose_topology(settings),
        worker_bytes=settings.http_worker_memory_bytes,
    )


def limit_lines(reading: LimitReading, sessions: int) -> list[Line]:
    """`sessions` is the number of models that would be loaded."""
    lines = [_cpu_line(reading, sessions), _memory_line(reading.room), _workers_line(reading)]
    return [*lines, _temporary_line(reading), _files_line(reading.open_files)]


def _cpu_line(reading: LimitReading, sessions: int) -> Line:
    plan = plan_threads(reading.cores / reading.topology.engines, max(1, sessions))
    shared = "a session gets" if sessions <= 1 else f"each of {sessions} sessions gets"
    quota = f" (a quota; {reading.affinity} are visible)" if reading.cores < reading.affinity else ""
    text = f"{reading.cores:g} cores{quota}; {shared} {plan.intra_op_threads} threads"
    if reading.cores < 1:
        return Line(_AREA, "CPU", Level.WARNING, text, "give the container at least one core: requests are throttled")
    return Line(_AREA, "CPU", Level.OK, text)


def _memory_line(room: MemoryRoom | None) -> Line:
    if room is None:
        return Line(_AREA, "memory", Level.WARNING, "the system does not tell its limit", "make /proc readable")
    return Line(_AREA, "memory", Level.OK, f"{size_text(room.free)} free of {size_text(room.total)}")


def _workers_line(reading: LimitReading) -> Line:
    workers, engines = reading.topology.http_workers, reading.topology.engines
    if not workers:
        return Line(_AREA, "processes", Level.OK, str(reading.topology))
    shared = workers * engines * reading.worker_bytes
    those = "the engine" if engines == 1 else "the engines"
    text = f"{reading.topology}; they share up to {size_text(shared)} with {those}, which count to the memory"
    # The shared memory is a memfd: the size of /dev/shm does not limit it, the container's memory does.
    if reading.room is not None and shared > reading.room.free:
        return Line(_AREA, "processes", Level.WARNING, text, "lower --http-worker-memory-bytes or --http-workers")
    return Line(_AREA, "processes", Level.OK, text)


def _temporary_line(reading: LimitReading) -> Line:
    if not reading.temporary:
        cure = "set TMPDIR to a folder that can be written; in Kubernetes mount an emptyDir at /tmp"
        return Line(_AREA, "temporary files", Level.FAILED, "no folder for them can be written", cure)
    if reading.temporary == IN_MEMORY:
        text = f"they are kept in memory, in {IN_MEMORY}, which has {size_text(reading.in_memory_bytes)}"
        return Line(_AREA, "temporary files", Level.WARNING, text, "set TMPDIR to use another directory")
    return Line(_AREA, "temporary files", Level.OK, f"in {reading.temporary}")


def _files_line(limit: int) -> Line:
    places = connection_places(limit)
    shown = "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
    text = f"{shown}, which allows {places} connections"
    if places < _FEW_CONNECTIONS:
        cure = "raise the hard limit: `ulimit -Hn`, `docker run --ulimit nofile=65536`, or LimitNOFILE of systemd"
        return Line(_AREA, "open files", Level.WARNING, text, cure)
    return Line(_AREA, "open files", Level.OK, text)
