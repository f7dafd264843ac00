"""The ports of a server in the caller's process: this project's worker on a thread, in front of the same engine."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from socket import socket
from types import SimpleNamespace

import gevent
from gevent.event import Event
from gunicorn.config import Config

from trident.app.process.files import IN_MEMORY
from trident.app.settings.server import METRICS, ServerSettings
from trident.app.sites.applications import Applications, grpc_ports, make_hub_bridge
from trident.app.sites.site import Credentials, Site, connection_limits, http_tls
from trident.app.supervisor.arbiter import GunicornLog
from trident.app.worker.listening_sockets import StopTimes, open_listener
from trident.app.worker.worker import TridentWorker
from trident.core.engine.in_process import InferenceEngine
from trident.core.frontend.gevent_bridge import GeventBridge, mailbox_here

_CONNECTIONS = 1000


class OpenPorts:
    """Ports that answer until `close`. Made by `Server.serve`; `http`, `grpc` and `metrics` are their numbers, None for
    those that are not open. `url` is that of HTTP."""

    def __init__(
        self,
        settings: ServerSettings,
        engine: InferenceEngine,
        *,
        address: str,
        http: int | None,
        grpc: int | None,
        metrics: int | None,
    ) -> None:
        self._process = os.getpid()
        listeners: list[socket] = []
        try:
            self.http, self.grpc, self.metrics = (_open(listeners, address, port) for port in (http, grpc, metrics))
            scheme = "https" if settings.http_use_ssl else "http"
            host = f"[{address}]" if ":" in address else address
            self.url = f"{scheme}://{host}:{self.http}" if self.http else ""
            settings = replace(
                settings,
                allow_http=http is not None,
                allow_grpc=grpc is not None,
                allow_metrics=metrics is not None,
                http_port=self.http or 0,
                grpc_port=self.grpc or 0,
                metrics_port=self.metrics or 0,
            )
            self._worker = _ThreadWorker(settings, listeners)
            credentials = Credentials(settings)
        except BaseException:
            for each in listeners:
                each.close()
            raise
        is_ready = threading.Event()
        run = (settings, engine, credentials, is_ready)
        self._thread = threading.Thread(target=self._worker.run_here, args=run, name="trident-ports", daemon=True)
        self._thread.start()
        is_ready.wait()

    def close(self) -> None:
        """Accept no more connections, answer what has arrived, and close the ports. Blocks. Any thread but theirs."""
        if os.getpid() == self._process and self._thread.is_alive():
            self._worker.handle_exit(0, None)
            self._thread.join()

    def __enter__(self) -> OpenPorts:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _open(listeners: list[socket], address: str, port: int | None) -> int | None:
    if port is None:
        return None
    listeners.append(open_listener(address, port))
    listeners[-1].setblocking(False)
    return int(listeners[-1].getsockname()[1])


class _ThreadSite(Site):
    """The applications in front of an engine that ends later than they do. Made on the thread of the hub."""

    def __init__(self, settings: ServerSettings, engine: InferenceEngine, credentials: Credentials) -> None:
        self._bridges: list[GeventBridge] = []
        self._release_memory = engine.release_memory
        engine.make_mailbox = mailbox_here
        applications = Applications(settings, engine, self._make_bridge, tokens=credentials.tokens)
        self.applications = applications.by_port()
        self.tls = http_tls(settings, credentials)
        self.http2_ports = grpc_ports(settings, engine, self._make_bridge, credentials, show=applications.show)

    def _make_bridge(self, threads: int) -> GeventBridge:
        self._bridges.append(make_hub_bridge(threads))
        return self._bridges[-1]

    def release_memory(self) -> None:
        self._release_memory()

    def end_threads(self) -> None:
        for bridge in self._bridges:
            bridge.close()


class _ThreadWorker(TridentWorker):
    """The worker without gunicorn's arbiter: it sets no signal handlers, and ends with its thread."""

    def __init__(self, settings: ServerSettings, listeners: list[socket]) -> None:
        config = Config()
        config.set("worker_connections", _CONNECTIONS)
        if Path(IN_MEMORY).is_dir() and os.access(IN_MEMORY, os.W_OK):
            config.set("worker_tmp_dir", IN_MEMORY)
        application = SimpleNamespace(
            limits=connection_limits(settings),
            stop_times=StopTimes(exit_timeout_s=settings.exit_timeout_secs),
            last_ports=frozenset({settings.metrics_port} if METRICS in settings.services() else ()),
        )
        super().__init__(0, os.getppid(), listeners, application, 0, config, GunicornLog(config))

    def run_here(
        self, settings: ServerSettings, engine: InferenceEngine, credentials: Credentials, is_ready: threading.Event
    ) -> None:
        """Serve on this thread until `handle_exit`."""
        self._stop = Event()
        self._stop_asked = gevent.get_hub().loop.async_()
        try:
            site = self.site = _ThreadSite(settings, engine, credentials)
            gevent.spawn(is_ready.set)
            credentials.watch()
            self.run()
            site.end_threads()
        except SystemExit:  # how a worker's process ends
            site.end_threads()
        finally:
            is_ready.set()  # also after an error, which the thread prints: the caller must not wait for ever
            credentials.close()
            self.tmp.close()
            gevent.get_hub().destroy()

    def _is_orphan(self) -> bool:
        return False
