"""`trident serve`: from the settings to a running server."""

from __future__ import annotations

from app.engine_site import EngineSite
from app.server import ServerConfiguration
from app.server import serve as run_server
from app.settings import ServerSettings


def serve(settings: ServerSettings) -> int:
    """Serve until told to stop; returns the exit status of the process."""
    return run_server(server_configuration(settings))


def server_configuration(settings: ServerSettings) -> ServerConfiguration:
    """What the server process needs to know of the settings; the site is made of them after the fork."""
    return ServerConfiguration(
        binds=settings.services(),
        make_site=lambda worker: EngineSite(settings, on_hub=worker is not None),
        drain_grace_s=settings.shutdown_grace_secs,
        exit_timeout_s=settings.exit_timeout_secs,
        request_timeout_s=settings.http_request_timeout_secs,
        keepalive_s=settings.http_keepalive_secs,
        reuse_port=settings.reuse_http_port,
        access_log=settings.log_access,
    )
