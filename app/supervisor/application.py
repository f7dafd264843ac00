"""The server process: gunicorn, embedded.

Source: docs/spec/server-options.md sections 4 to 6.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from socket import socket
from typing import Any

from gevent.monkey import is_module_patched
from gunicorn.app.base import BaseApplication
from gunicorn.errors import AppImportError

from app.sites.site import Site
from app.supervisor.arbiter import TridentArbiter
from app.supervisor.engine_child import EngineChild
from app.supervisor.gunicorn_log import GunicornLog
from app.supervisor.stop_signals import release_stop_signals
from app.supervisor.temporary_directory import IN_MEMORY
from app.worker.http1.limits import ConnectionLimits
from app.worker.listeners import BindFailed, PortDispatcher, open_listeners, raise_file_limit
from app.worker.shutdown import StopTimes
from app.worker.worker import TridentWorker
from core.observability.console import print_line

WORKER_CLASS = "app.worker.worker.TridentWorker"
# How long the hub may be held up (a native call that keeps the interpreter) before the arbiter kills the worker.
_HEARTBEAT_TIMEOUT_S = 120
_STOP_RESERVE_S = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfiguration:
    """What `serve` needs to know.

    `binds` are (address, port) by name. `make_site` is called in the worker, after the fork, with the worker, or with
    None under a stock worker class. Times are seconds: `drain_grace_s` of unready service before the listeners close,
    then `exit_timeout_s` for what is in flight; `request_timeout_s` and `keepalive_s` as in `ConnectionLimits`.
    `last` names the binds that close last of all. `engine` is the process behind the workers, if their sites have none
    in them.
    """

    binds: Mapping[str, tuple[str, int]]
    make_site: Callable[[TridentWorker | None], Site]
    last: frozenset[str] = frozenset()
    drain_grace_s: float = 0.0
    exit_timeout_s: float = 30.0
    request_timeout_s: float = 60.0
    keepalive_s: float = 600.0
    max_body_size: int = 2**31 - 1
    reuse_port: bool = False
    access_log: bool = False
    worker_class: str = WORKER_CLASS
    stock_threads: int = 16
    workers: int = 1
    engine: EngineChild | None = None


class TridentApplication(BaseApplication):  # type: ignore[misc]
    """gunicorn's view of the server. `TridentWorker` reads `limits`, `stop_times` and `last_ports`, and calls
    `make_site`."""

    def __init__(self, configuration: ServerConfiguration, listeners: list[socket], places: int) -> None:
        self._configuration = configuration
        self._descriptors = [listener.detach() for listener in listeners]
        self._places = places
        self._stock_site: Site | None = None
        self.engine = configuration.engine
        self.limits = ConnectionLimits(
            request_timeout_s=configuration.request_timeout_s,
            keepalive_s=configuration.keepalive_s,
            max_body_size=configuration.max_body_size,
        )
        self.last_ports = {port for name, (_, port) in configuration.binds.items() if name in configuration.last}
        self.stop_times = StopTimes(
            drain_grace_s=configuration.drain_grace_s, exit_timeout_s=configuration.exit_timeout_s
        )
        super().__init__()

    def load_config(self) -> None:
        configuration = self._configuration
        settings: dict[str, Any] = {
            "bind": [f"fd://{descriptor}" for descriptor in self._descriptors],
            "workers": configuration.workers,
            "worker_class": configuration.worker_class,
            "worker_connections": self._places,
            "threads": 1 if configuration.worker_class == WORKER_CLASS else configuration.stock_threads,
            "preload_app": False,
            "timeout": _HEARTBEAT_TIMEOUT_S,
            "graceful_timeout": int(configuration.drain_grace_s + configuration.exit_timeout_s) + _STOP_RESERVE_S,
            "keepalive": max(1, int(configuration.keepalive_s)),
            "limit_request_line": 8190,
            "secure_scheme_headers": {},
            "logger_class": GunicornLog,
            "accesslog": "-" if configuration.access_log else None,
            "control_socket_disable": True,
            "proc_name": "trident",
            "post_worker_init": _booted,
            "worker_exit": self._stock_worker_exit,
        }
        if os.access(IN_MEMORY, os.W_OK):
            settings["worker_tmp_dir"] = IN_MEMORY  # heartbeats must not wait for a disk
        for name, value in settings.items():
            self.cfg.set(name, value)

    def make_site(self, worker: TridentWorker | None) -> Site:
        return self._configuration.make_site(worker)

    def load(self) -> PortDispatcher:
        """The WSGI callable for a stock worker. Raises AppImportError under one that has patched `threading`."""
        if is_module_patched("threading"):
            raise AppImportError(
                f"the worker class {self._configuration.worker_class!r} has replaced the native threads that models "
                f"run on: use {WORKER_CLASS!r}"
            )
        self._stock_site = site = self.make_site(None)
        site.start()
        return PortDispatcher(site.applications)

    def run(self) -> None:
        TridentArbiter(self).run()

    def _stock_worker_exit(self, arbiter: Any, worker: Any) -> None:
        if self._stock_site is not None:
            self._stock_site.begin_exit()
            self._stock_site.finish(self.stop_times.exit_timeout_s)


def _booted(worker: Any) -> None:
    """In a worker of any class: it has its own signal handlers now. What asked it to stop meanwhile comes through."""
    release_stop_signals()


def serve(configuration: ServerConfiguration) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status of the process: 0 if everything in flight was answered.

    1 if the exit timeout ended first, a port is taken, or the site failed. Call it from the main thread, before any
    other thread exists.
    """
    places = raise_file_limit()
    try:
        listeners = open_listeners(configuration.binds.values(), reuse_port=configuration.reuse_port)
    except BindFailed as error:
        print_line(f"error: creating server: {error.code.value} - {error.message}", sys.stderr)
        if configuration.engine is not None:
            configuration.engine.stop(0)
        return 1
    try:
        TridentApplication(configuration, listeners, places).run()
    except SystemExit as ending:
        return 0 if not ending.code else 1
    return 0
