"""The ports that the server would open: whether they are free, and who has a taken one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from app.commands.doctor.live_server import running_server
from app.commands.doctor.report import Level, Line
from app.process.port_owner import owner_of
from app.settings.services import Service, is_unix, spell_endpoint
from app.worker.listening_sockets import BindFailed, close_listener, open_listener

_AREA = "Ports"


@dataclass(frozen=True, slots=True)
class PortReading:
    """`failure` is the message of the failed attempt to open the port, empty if it opened.

    `owner` is the process that has the port, empty if it is unknown; `server` is the name and version of a server that
    speaks Triton's protocol and has it.
    """

    service: str
    address: str
    port: int
    failure: str = ""
    owner: str = ""
    server: str = ""


def read_ports(
    services: Mapping[Service, tuple[str, int]], reuses_port: Callable[[Service], bool] = lambda service: False
) -> list[PortReading]:
    """Open each port for a moment, as the server would, and ask a server that has it who it is."""
    readings: list[PortReading] = []
    for service, (address, port) in services.items():
        failure = owner = server = ""
        try:
            close_listener(open_listener(address, port, reuse_port=reuses_port(service)))
        except BindFailed as error:
            failure = error.message.strip()
            owner = "" if is_unix(address) else owner_of(port)
            if service is Service.HTTP:
                server = running_server(f"http://{_reachable(address)}:{port}")
        readings.append(PortReading(service, address, port, failure, owner, server))
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
        return Line(_AREA, check, Level.OK, f"{where} is free")
    option = Service(reading.service).option(reading.address)
    if reading.server:
        text = f"{where} is that of a running server, {reading.server} ({reading.owner or 'of another user'})"
        return Line(_AREA, check, Level.WARNING, text, f"`trident doctor URL` asks it; a second server needs {option}")
    text = reading.failure + (f", by {reading.owner}" if reading.owner else "")
    return Line(_AREA, check, Level.FAILED, text, f"stop the process that has the port, or set {option}")
