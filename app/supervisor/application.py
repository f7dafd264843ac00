"""Gunicorn's application: the configuration of the server in gunicorn's terms.

Source: docs/spec/server-options.md sections 4 to 6.
"""

from __future__ import annotations

import logging
import os
from socket import socket
from typing import TYPE_CHECKING, Any

from gunicorn.app.base import BaseApplication
from gunicorn.errors import AppImportError
from gunicorn.glogging import Logger

from trident.app.process.files import IN_MEMORY
from trident.app.supervisor.arbiter import TridentArbiter
from trident.app.supervisor.configuration import WORKER_CLASS, ServerConfiguration
from trident.app.supervisor.start import release_stop_signals, send_noted_signals
from trident.app.worker.limits import ConnectionLimits, StopTimes
from trident.app.worker.listening_sockets import PortDispatcher
from trident.core.observability.log import ask_to_reopen_log

if TYPE_CHECKING:
    from trident.app.sites.engine_start import EngineStart
    from trident.app.sites.site import Site
    from trident.app.worker.worker import TridentWorker


_STOPPING = "Shutting down"


class GunicornLog(Logger):  # type: ignore[misc]
    """Sends gunicorn's messages to the logger `trident.gunicorn`, and discards its access log."""

    def setup(self, cfg: Any) -> None:
        self.error_log = logging.getLogger("trident.gunicorn")

    def reopen_files(self) -> None:
        """SIGUSR1, in the main process and in a worker, perhaps in the middle of an event."""
        ask_to_reopen_log()

    def error(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """The stop of a server is no error, whatever its exit status; the last line of the log says what was."""
        level = logging.INFO if msg.startswith(_STOPPING) else logging.ERROR
        self.error_log.log(level, msg, *args, **kwargs)

    def access(self, resp: Any, req: Any, environ: Any, request_time: Any) -> None:
        return None


# The arbiter kills a worker whose hub a native call holds up for longer than this.
_HEARTBEAT_TIMEOUT_S = 120
_STOP_RESERVE_S = 10


class TridentApplication(BaseApplication):  # type: ignore[misc]
    """`TridentWorker` reads `limits`, `stop_times`, `last_ports` and `failure_note`, and calls
    `make_site`."""

    def __init__(self, configuration: ServerConfiguration, listeners: list[socket], places: int) -> None:
        """Takes over the sockets of `listeners`. `places` is the number of connections that may be open at once."""
        self._configuration = configuration
        self._descriptors = [listener.detach() for listener in listeners]
        self._places = places
        self._stock_site: Site | None = None
        self._begun: EngineStart | None = None
        self.engines = configuration.engines
        self.failure_note = configuration.failure_note
        self.limits = ConnectionLimits(
            request_timeout_s=configuration.request_timeout_s,
            keepalive_s=configuration.keepalive_s,
            max_body_size=configuration.max_body_size,
        )
        self.shared_modules = configuration.shared_modules
        self.last_ports = configuration.last_ports
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
            "control_socket_disable": True,
            "proc_name": "trident",
            "post_fork": _forked,
            "post_worker_init": _booted,
            "worker_exit": self._stock_worker_exit,
        }
        if os.access(IN_MEMORY, os.W_OK):
            settings["worker_tmp_dir"] = IN_MEMORY  # heartbeats must not wait for a disk
        for name, value in settings.items():
            self.cfg.set(name, value)

    def begin(self) -> None:
        """Begin in a new worker what takes long and needs nothing of the worker."""
        self._begun = self._configuration.begin()

    def make_site(self, worker: TridentWorker | None) -> Site:
        return self._configuration.make_site(worker, self._begun)

    def load(self) -> PortDispatcher:
        """The WSGI callable for a stock worker. Raises AppImportError under a worker that patches `threading`."""
        from gevent.monkey import is_module_patched

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


def _forked(arbiter: Any, worker: Any) -> None:
    """In a new worker of any class."""
    arbiter.worker_forked()


def _booted(worker: Any) -> None:
    """A worker of any class now has its own signal handlers, so the stop signals that came before may arrive."""
    release_stop_signals()
    send_noted_signals()
