"""The site of a front end: the applications, with the engine in its own process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from wsgiref.types import WSGIApplication

from trident.app.process.files import PrivateDirectory
from trident.app.process.heap import settle_collector
from trident.app.settings.server import ServerSettings
from trident.app.sites.applications import Applications, grpc_ports, make_hub_bridge
from trident.app.sites.site import Credentials, Http2Port, http_tls
from trident.app.worker.gevent_link import GeventLink
from trident.core.http.metrics import share_request_counts
from trident.core.remote.engine_client import RemoteEngine

if TYPE_CHECKING:
    from trident.core.remote.pool import EnginePool


class FrontEndSite:
    """Made in the worker, after the fork. It is connected to the engines at the sockets in `directory`."""

    failure: str | None = None

    def __init__(
        self,
        settings: ServerSettings,
        credentials: Credentials,
        directory: PrivateDirectory,
        engines: int = 1,
    ) -> None:
        self._credentials = credentials
        self.tls = http_tls(settings, credentials)
        self._directory = directory
        request_counts = share_request_counts(directory.metrics)
        self._engine = _engine(settings, directory, engines)
        self.allocate = self._engine.allocate
        self.release_memory = self._engine.release_memory
        applications = Applications(
            settings,
            self._engine,
            make_hub_bridge,
            request_counts,
            credentials.tokens,
            directory.path,
            self._engine.process_ids,
        )
        self.applications: Mapping[int, WSGIApplication] = applications.by_port()
        self.http2_ports: Mapping[int, Http2Port] = grpc_ports(
            settings, self._engine, make_hub_bridge, credentials, allocate=self.allocate
        )

    def start(self) -> None:
        self._engine.start()
        self._credentials.watch()
        settle_collector()

    def begin_exit(self) -> None:
        self._engine.begin_exit()

    def log_in_flight(self, seconds_left: float) -> None:
        """Nothing: the engine's process logs it once, and each front end would log it again."""

    def finish(self, timeout_s: float) -> bool:
        """True: all requests in flight have been answered, and the engine ends after the front ends."""
        self._credentials.close()
        self._directory.remove_if_orphaned()
        return True


def _engine(settings: ServerSettings, directory: PrivateDirectory, engines: int) -> RemoteEngine | EnginePool:
    memory_bytes = settings.http_worker_memory_bytes
    if engines == 1:
        return RemoteEngine(str(directory.socket), GeventLink(), memory_bytes)
    from trident.core.remote.pool import EnginePool  # for several engines only

    sockets = [str(directory.socket_of(index)) for index in range(engines)]
    keeps_answers = bool(settings.response_cache_bytes) and settings.redis_options is None
    return EnginePool(
        sockets,
        GeventLink,
        memory_bytes,
        directory.changes,
        keeps_answers=keeps_answers,
        by_model=settings.multi_model,
    )
