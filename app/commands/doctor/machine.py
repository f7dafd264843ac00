"""This machine: its GPUs and frameworks, its limits, and the ports of the server."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from trident.adapters.common.options import is_unix, spell_endpoint
from trident.app.commands.doctor.report import Area, Level, Line, counted, first_names, size_text
from trident.app.commands.doctor.server import running_server
from trident.app.process.files import IN_MEMORY, NoTemporaryDirectory, max_connections, temporary_directory
from trident.app.process.port_owner import owner_of
from trident.app.settings.server import HTTP, ServerSettings, Service
from trident.app.supervisor.start import Topology, choose_topology
from trident.app.worker.listening_sockets import BindFailed, close_listener, open_listener
from trident.core.backends.cpu_budget import available_cores, plan_threads
from trident.core.backends.registry import DeviceSupport, ProviderState, device_support
from trident.core.cuda import gpu_ids
from trident.core.observability.hardware import DriverReading, MemoryState, host_memory, read_driver

_GPU = Area("GPU")
_DRIVER_CURE = (
    "install NVIDIA's driver, and start the container with the GPUs (docker run --gpus all, or nvidia.com/gpu in "
    "Kubernetes)"
)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """`driver` is the reason if there is none. `usable` are the CUDA numbers of the GPUs that the server may use.

    `support` is by the backend's name: its providers, or the reason why its framework cannot be imported.
    """

    driver: DriverReading | str
    usable: Sequence[int]
    support: Mapping[str, DeviceSupport | str]


def read_gpu(settings: ServerSettings) -> GpuReading:
    """Load the driver and the frameworks; takes seconds."""
    usable = gpu_ids(settings.min_supported_compute_capability)
    return GpuReading(read_driver(settings.visible_gpus), usable, device_support())


def gpu_lines(reading: GpuReading, asked_by: Sequence[str]) -> list[Line]:
    """`asked_by` are the models whose configuration asks for a GPU."""
    asked = f"; asked for by {first_names(asked_by)}" if asked_by else ""
    lines = [_driver_line(reading, asked)]
    for name, support in reading.support.items():
        if isinstance(support, str):
            cure = "install trident-inference with the extra that brings it, such as trident-inference[cpu]"
            lines.append(_GPU.failed(f"backend {name}", f"cannot be imported: {support}", cure))
            continue
        lines.append(_GPU.ok(f"backend {name}", support.framework))
        lines += [_provider_line(each, bool(reading.usable), asked) for each in support.providers]
    return lines


def _driver_line(reading: GpuReading, asked: str) -> Line:
    driver, usable = reading.driver, len(reading.usable)
    if isinstance(driver, str) and not usable:
        if asked:
            return _GPU.failed("driver", f"no GPU ({driver}){asked}", _DRIVER_CURE)
        return _GPU.ok("driver", "no GPU, and none is asked for: models run on the CPU")
    if isinstance(driver, str):
        text = f"{counted(usable, 'GPU')}, but their state cannot be read ({driver})"
        return _GPU.warning("driver", text, "give the container the driver's utility libraries")
    sizes = ", ".join(size_text(size) for size in driver.gpu_bytes if size)
    text = f"{driver.version}, CUDA up to {driver.cuda}, {counted(usable, 'GPU')}" + (f" ({sizes})" if sizes else "")
    if usable:
        return _GPU.ok("driver", text)
    cure = "check CUDA_VISIBLE_DEVICES and --min-supported-compute-capability; `nvidia-smi` shows what the driver sees"
    return _GPU.line(Level.FAILED if asked else Level.WARNING, "driver", f"{text} that can be used{asked}", cure)


def _provider_line(state: ProviderState, has_gpu: bool, asked: str) -> Line:
    if state.installed and not state.problem:
        return _GPU.ok(state.name, "its libraries load")
    is_for_gpus = state.name.startswith("CUDA")
    if state.installed:
        level = Level.FAILED if is_for_gpus and (asked or has_gpu) else Level.WARNING
        return _GPU.line(level, state.name, f"cannot be loaded: {state.problem}", state.cure)
    text = "not in this installation"
    if is_for_gpus and asked:
        return _GPU.failed(state.name, f"{text}{asked}", state.cure)
    if is_for_gpus and has_gpu:
        return _GPU.warning(state.name, f"{text}: models run on the CPU", state.cure)
    return _GPU.ok(state.name, f"{text}, and not asked for" if is_for_gpus else f"{text} (optional)")


_LIMITS = Area("Limits")
_FEW_CONNECTIONS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReading:
    """`cores` are those that the process may use, `affinity` those on which it may run at all.

    `room` is None if the system does not tell. `open_files` is the hard limit. `temporary` is the directory of
    temporary files, empty if there is none. `in_memory_bytes` is the size of /dev/shm, 0 without it.
    """

    cores: float
    affinity: int
    room: MemoryState | None
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
        room=host_memory(),
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
        return _LIMITS.warning("CPU", text, "give the container at least one core: requests are throttled")
    return _LIMITS.ok("CPU", text)


def _memory_line(room: MemoryState | None) -> Line:
    if room is None:
        return _LIMITS.warning("memory", "the system does not tell its limit", "make /proc readable")
    return _LIMITS.ok("memory", f"{size_text(room.free)} free of {size_text(room.total)}")


def _workers_line(reading: LimitReading) -> Line:
    workers, engines = reading.topology.http_workers, reading.topology.engines
    if not workers:
        return _LIMITS.ok("processes", str(reading.topology))
    shared = workers * engines * reading.worker_bytes
    those = "the engine" if engines == 1 else "the engines"
    text = f"{reading.topology}; they share up to {size_text(shared)} with {those}, which count to the memory"
    # The shared memory is a memfd: the size of /dev/shm does not limit it, the container's memory does.
    if reading.room is not None and shared > reading.room.free:
        return _LIMITS.warning("processes", text, "lower --http-worker-memory-bytes or --http-workers")
    return _LIMITS.ok("processes", text)


def _temporary_line(reading: LimitReading) -> Line:
    if not reading.temporary:
        cure = "set TMPDIR to a folder that can be written; in Kubernetes mount an emptyDir at /tmp"
        return _LIMITS.failed("temporary files", "no folder for them can be written", cure)
    if reading.temporary == IN_MEMORY:
        text = f"they are kept in memory, in {IN_MEMORY}, which has {size_text(reading.in_memory_bytes)}"
        return _LIMITS.warning("temporary files", text, "set TMPDIR to use another directory")
    return _LIMITS.ok("temporary files", f"in {reading.temporary}")


def _files_line(limit: int) -> Line:
    allowed = max_connections(limit)
    shown = "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
    text = f"{shown}, which allows {allowed} connections"
    if allowed < _FEW_CONNECTIONS:
        cure = "raise the hard limit: `ulimit -Hn`, `docker run --ulimit nofile=65536`, or LimitNOFILE of systemd"
        return _LIMITS.warning("open files", text, cure)
    return _LIMITS.ok("open files", text)


_PORTS = Area("Ports")


@dataclass(frozen=True, slots=True)
class PortReading:
    """`failure` is the message of the failed attempt to open the port, empty if it opened.

    `owner` is the process that has the port, empty if it is unknown; `server` is the name and version of a server that
    speaks Triton's protocol and has it. `option` moves the service to another port.
    """

    service: str
    address: str
    port: int
    failure: str = ""
    owner: str = ""
    server: str = ""
    option: str = ""


def read_ports(services: Mapping[str, Service]) -> list[PortReading]:
    """Open each port for a moment, as the server would, and ask a server that has it who it is."""
    readings: list[PortReading] = []
    for name, (address, port, option, _, reuses_port) in services.items():
        failure = owner = server = ""
        try:
            close_listener(open_listener(address, port, reuse_port=reuses_port))
        except BindFailed as error:
            failure = error.message.strip()
            owner = "" if is_unix(address) else owner_of(port)
            if name == HTTP:
                server = running_server(f"http://{_reachable(address)}:{port}")
        readings.append(PortReading(name, address, port, failure, owner, server, option))
    running = next((each for each in readings if each.server), None)
    if running is None or not running.owner:
        return readings
    return [replace(each, server=running.server) if each.owner == running.owner else each for each in readings]


def _reachable(address: str) -> str:
    """The address at which a server that listens on `address` is asked from this machine."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]", "[::]": "[::1]", "": "127.0.0.1"}.get(address, address)


def port_lines(readings: Iterable[PortReading]) -> list[Line]:
    return [_line(reading) for reading in readings]


def _line(reading: PortReading) -> Line:
    check = reading.service if reading.service.isupper() else reading.service[0].upper() + reading.service[1:]
    where = spell_endpoint(reading.address, reading.port)
    if not reading.failure:
        return _PORTS.ok(check, f"{where} is free")
    if reading.server:
        text = f"{where} is that of a running server, {reading.server} ({reading.owner or 'of another user'})"
        return _PORTS.warning(check, text, f"`trident doctor URL` asks it; a second server needs {reading.option}")
    text = reading.failure + (f", by {reading.owner}" if reading.owner else "")
    return _PORTS.failed(check, text, f"stop the process that has the port, or set {reading.option}")
