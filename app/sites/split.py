"""The site of a front end: the applications, before an engine in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from wsgiref.types import WSGIApplication

import gevent

from app.settings.server import ServerSettings
from app.sites.applications import Applications
from app.supervisor.private_directory import PrivateDirectory
from app.worker.garbage_collector import settle_collector
from app.worker.gevent_link import GeventLink
from core.frontend.bridge import Bridge, ThreadBridge
from core.frontend.gevent_bridge import GeventBridge
from core.http.shared_request_metrics import SharedRequestMetrics
from core.remote.client import RemoteEngine
from core.remote.transport.link import Link, ThreadLink


class FrontEndSite:
    """Made in the worker, after the fork. Under this project's worker it waits on the hub, else on native threads."""

    failure: str | None = None

    def __init__(self, settings: ServerSettings, directory: PrivateDirectory, *, on_hub: bool) -> None:
        self._on_hub = on_hub
        self._directory = directory
        requests = SharedRequestMetrics(directory.metrics)
        link: Link = GeventLink() if on_hub else ThreadLink()
        self._engine = RemoteEngine(str(directory.socket), link, settings.http_worker_memory_bytes)
        self.allocate = self._engine.allocate
        self.applications: Mapping[int, WSGIApplication] = Applications(
            settings, self._engine, self._bridge, requests.page
        ).by_port()

    def start(self) -> None:
        self._engine.start()
        settle_collector()

    def begin_exit(self) -> None:
        self._engine.begin_exit()

    def log_in_flight(self, seconds_left: float) -> None:
        """The engine says it itself, when its turn has come: it would be said by each front end."""

    def finish(self, timeout_s: float) -> bool:
        """What was in flight has been answered; the engine ends when all front ends have."""
        self._directory.remove_if_orphaned()
        return True

    def _bridge(self, threads: int) -> Bridge:
        return GeventBridge(gevent.get_hub(), threads) if self._on_hub else ThreadBridge()
