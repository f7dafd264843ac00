"""`trident doctor`: whether this machine can serve these settings, or whether a server serves as it should."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trident.adapters.common.options import SWITCH, Option
from trident.app.commands.doctor.machine import gpu_lines, limit_lines, port_lines, read_gpu, read_limits, read_ports
from trident.app.commands.doctor.report import OF_MACHINE, OF_SERVER, Area, Line, has_failed, json_report, text_report
from trident.app.commands.doctor.repository import (
    RepositoryReading,
    read_cache,
    read_repository,
    repository_lines,
    room_lines,
)
from trident.app.commands.doctor.server import server_lines
from trident.app.commands.doctor.storage import read_storage, storage_lines
from trident.app.process.environment import disable_telemetry, process_environment
from trident.app.settings.reading import read_settings, with_repositories
from trident.app.settings.server import ServerSettings
from trident.core.errors import ServerError
from trident.core.observability.log import LogOptions, configure_logging
from trident.core.repository.location import Scheme, parse_location

JSON = Option(flag="json", kind=SWITCH, help="Print the report as JSON.", own=True)
_JSON_FLAG = f"--{JSON.flag}"
_URLS = ("http://", "https://")


def doctor(arguments: Sequence[str]) -> int:
    """Print the report; the arguments are `--json` and those of `serve`, or the URLs of servers that run.

    Returns 1 if a line has failed, otherwise 0. Raises BadOption.
    """
    urls = [each for each in arguments if each.startswith(_URLS)]
    of_serve = [each for each in arguments if each != _JSON_FLAG and each not in urls]
    settings = read_settings(with_repositories(of_serve), needs_repository=False)
    # The report has everything that a log would say.
    configure_logging(LogOptions(info=False, warning=False, error=False))
    disable_telemetry()
    lines = [line for url in urls for line in server_lines(url, settings.metrics_port)]
    if not urls:
        lines = examine_machine(settings)
    text = json_report(lines) if _JSON_FLAG in arguments else text_report(lines, OF_SERVER if urls else OF_MACHINE)
    sys.stdout.write(text)
    return 1 if has_failed(lines) else 0


def examine_machine(settings: ServerSettings) -> list[Line]:
    """Every line of the page. Asks the storages, opens the ports for a moment, and loads local models one by one."""
    environ = process_environment()
    storages: list[Line] = []
    repositories: list[RepositoryReading] = []
    for text in dict.fromkeys(filter(None, settings.model_repository)):
        try:
            location = parse_location(text)
        except ServerError as error:
            storages.append(Area("Repository").failed("address", error.message, error.hint or ""))
            continue
        if location.scheme is Scheme.LOCAL:
            repositories.append(read_repository(location, settings))
            continue
        storage = read_storage(location, settings.cloud_credential_path, environ)
        found = storage_lines(storage, environ)
        storages += found
        if not has_failed(found):  # otherwise the scan would fail in the same way, after more attempts
            repositories.append(read_repository(location, settings, storage.folders))
    limits = read_limits(settings)
    on_cpu = settings.gpu_missing == "cpu"
    asked_by = [] if on_cpu else [name for reading in repositories for name in reading.asking_for_gpu]
    free_memory = limits.room.free if limits.room is not None else None
    return [
        *storages,
        *(line for reading in repositories for line in repository_lines(reading)),
        *_room_lines(repositories, free_memory, settings),
        *limit_lines(limits, sum(len(reading.models) for reading in repositories)),
        *port_lines(read_ports(settings.services())),
        *gpu_lines(read_gpu(settings), asked_by),
    ]


def _room_lines(
    repositories: Sequence[RepositoryReading], free_memory: int | None, settings: ServerSettings
) -> list[Line]:
    in_cloud = any(reading.location.scheme is not Scheme.LOCAL for reading in repositories)
    try:
        return room_lines(repositories, free_memory, read_cache(settings) if in_cloud else None)
    except OSError as error:
        cure = "name a folder that can be written with --model-cache-directory"
        failure = f"the model cache {settings.model_cache_directory} cannot be read: {error.strerror}"
        return [*room_lines(repositories, free_memory, None), Area("Room").failed("disk", failure, cure)]
