"""The image's HEALTHCHECK: asks the server of this container whether it is ready.

    python healthcheck.py [PID]

PID is the server's process, 1 by default; its command line determines the port and the route to ask. The exit status is
0 if the answer is 200 or there is nothing to ask; otherwise it is 1, with a line on stdout.
"""

from __future__ import annotations

import http.client
import ssl
import sys
from pathlib import Path
from typing import NamedTuple

from trident.adapters.common.options import BadOption
from trident.app.settings.reading import read_settings
from trident.app.settings.server import ServerSettings

_LIMIT_S = 4.0
_COMMAND = "trident"
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class Question(NamedTuple):
    address: str
    port: int
    path: str
    is_tls: bool = False


def server_arguments(command_line: bytes) -> list[str] | None:
    """The server's arguments after `serve`, from /proc/PID/cmdline; None if the process is not a server.

    The words before the command, such as an interpreter or a small init process, are skipped.
    """
    words = [word.decode(errors="surrogateescape") for word in command_line.split(b"\0")[:-1]]
    names = [Path(word).name for word in words]
    if _COMMAND not in names:
        return None
    arguments = words[names.index(_COMMAND) + 1 :]
    if arguments[:1] == ["serve"]:
        return arguments[1:]
    return arguments if arguments and arguments[0].startswith("-") else None


def question(settings: ServerSettings) -> Question | None:
    """The health request of the platform; None if the server opens no port for it."""
    address = _ANY.get(settings.http_address, settings.http_address)
    for platform in settings.open_platforms.values():
        return Question(address, platform.port, platform.health_route)
    if not settings.allow_http or settings.http_use_ssl_mutual:  # there is no client's certificate to show
        return None
    return Question(address, settings.http_port, "/v2/health/ready", settings.http_use_ssl)


def main(arguments: list[str]) -> int:
    pid = int(arguments[0]) if arguments else 1
    started_with = server_arguments(Path(f"/proc/{pid}/cmdline").read_bytes())
    if started_with is None:
        return 0
    try:
        asked = question(read_settings(started_with))
    except BadOption as error:
        return _unhealthy(str(error))
    if asked is None:
        return 0
    connection = _connection(asked)
    try:
        connection.request("GET", asked.path)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        return _unhealthy(f"port {asked.port}: {error}")
    finally:
        connection.close()
    return 0 if response.status == 200 else _unhealthy(f"{response.status} {body.decode(errors='replace')}")


def _connection(asked: Question) -> http.client.HTTPConnection:
    if not asked.is_tls:
        return http.client.HTTPConnection(asked.address, asked.port, timeout=_LIMIT_S)
    # The server of this very container: its certificate is for the names by which clients know it.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(asked.address, asked.port, timeout=_LIMIT_S, context=context)


def _unhealthy(reason: str) -> int:
    print(reason)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
