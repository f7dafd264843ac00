"""The ports that the server would open: whether they are free, and which process has a taken one.

Source: proc(5), /proc/net/tcp and /proc/PID/fd.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.commands.doctor.report import Level, Line
from app.settings.services import Service, is_unix, spell_endpoint
from app.worker.listening_sockets import BindFailed, close_listener, open_listener

_AREA = "Ports"
_PROC = Path("/proc")
_LISTENING = "0A"
_OPTIONS = {
    Service.GRPC: "--grpc-port",
    Service.HTTP: "--http-port",
    Service.SAGEMAKER: "--sagemaker-port",
    Service.VERTEX_AI: "--vertex-ai-port",
    Service.METRICS: "--metrics-port",
}


@dataclass(frozen=True, slots=True)
class PortReading:
    """`failure` is the message of the failed attempt to open the port, empty if it opened.

    `owner` is the process that has the port, as `name (pid N)`; empty if it is unknown.
    """

    service: str
    address: str
    port: int
    failure: str = ""
    owner: str = ""


def read_ports(
    services: Mapping[Service, tuple[str, int]], reuses_port: Callable[[Service], bool] = lambda service: False
) -> list[PortReading]:
    """Open each port for a moment, as the server would."""
    readings = []
    for service, (address, port) in services.items():
        failure = owner = ""
        try:
            close_listener(open_listener(address, port, reuse_port=reuses_port(service)))
        except BindFailed as error:
            failure = error.message.strip()
            owner = owner_of(port)
        readings.append(PortReading(service, address, port, failure, owner))
    return readings


def port_lines(readings: Iterable[PortReading]) -> list[Line]:
    return [_line(reading) for reading in readings]


def listening_inodes(table: str, port: int) -> set[str]:
    """The inodes of the sockets that listen on `port`, from the text of /proc/net/tcp or /proc/net/tcp6."""
    rows = [row.split() for row in table.splitlines()[1:]]
    ending = f":{port:04X}"
    return {row[9] for row in rows if len(row) > 9 and row[1].endswith(ending) and row[3] == _LISTENING}


def owner_of(port: int, proc: Path = _PROC) -> str:
    """The process that listens on `port`, as `name (pid N)`; empty if it belongs to another user or container."""
    inodes: set[str] = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            inodes |= listening_inodes((proc / "net" / name).read_text(), port)
    sockets = {f"socket:[{inode}]" for inode in inodes}
    for process in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)) if sockets else ():
        with suppress(OSError):
            if any(_target(entry) in sockets for entry in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return ""


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:  # closed in the meantime
        return ""


def _line(reading: PortReading) -> Line:
    check = reading.service if reading.service.isupper() else reading.service[0].upper() + reading.service[1:]
    where = spell_endpoint(reading.address, reading.port)
    if not reading.failure:
        return Line(_AREA, check, Level.OK, f"{where} is free")
    option = "--grpc-address" if is_unix(reading.address) else _OPTIONS[Service(reading.service)]
    text = reading.failure + (f", by {reading.owner}" if reading.owner else "")
    return Line(_AREA, check, Level.FAILED, text, f"stop the process that has the port, or set {option}")
