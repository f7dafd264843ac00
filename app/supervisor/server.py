"""The server process: its configuration, gunicorn's application, and the run until the server is stopped.

Source: docs/spec/server-options.md sections 4 to 6.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from socket import socket
from typing import TYPE_CHECKING, Any

from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger

from trident.app.process.files import IN_MEMORY, raise_file_limit
from trident.app.supervisor.arbiter import EngineChild, TridentArbiter
from trident.app.supervisor.start import FailureNote, release_stop_signals, send_noted_signals
from trident.app.worker.listening_sockets import Bind, BindFailed, ConnectionLimits, StopTimes, open_listeners
from trident.core.observability.log import ask_to_reopen_log, log_failure

if TYPE_CHECKING:
    from trident.app.sites.engine_start import EngineStart
    from trident.app.sites.site import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfiguration:
    """What the supervisor needs to know of the server that it runs.

    `addresses` are the sockets to listen on; `last_ports` close after all others. `begin` is called in a worker, after
    the fork and before the worker imports the modules that serve. `make_site` is called there later, with the result of
    `begin`. After SIGTERM the server answers for `drain_grace_s` seconds while it is unready, and then has
    `exit_timeout_s` for the requests in flight. `engines` are the processes behind the workers, none if each site
    contains the engine. `shared_modules` are imported before the workers are forked. A process that cannot serve writes
    the reason into `failure_note`.
    """

    addresses: tuple[Bind, ...]
    make_site: Callable[[EngineStart | None], Site]
    begin: Callable[[], EngineStart | None] = lambda: None
    last_ports: frozenset[int] = frozenset()
    drain_grace_s: float = 0.0
    exit_timeout_s: float = 30.0
    request_timeout_s: float = 60.0
    keepalive_s: float = 600.0
    max_body_size: int = 2**31 - 1
    workers: int = 1
    shared_modules: tuple[str, ...] = ()
    engines: tuple[EngineChild, ...] = ()
    failure_note: FailureNote = field(default_factory=FailureNote)


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
    """`TridentWorker` reads `limits`, `stop_times`, `last_ports` and `failure_note`, and calls `make_site`."""

    def __init__(self, configuration: ServerConfiguration, listeners: list[socket], max_connections: int) -> None:
        """Takes over the sockets of `listeners`. `max_connections` may be open at once."""
        self._configuration = configuration
        self._descriptors = [listener.detach() for listener in listeners]
        self._max_connections = max_connections
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
            "worker_class": "trident.app.supervisor.arbiter.WorkerProcess",
            "worker_connections": self._max_connections,
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
        }
        if os.access(IN_MEMORY, os.W_OK):
            settings["worker_tmp_dir"] = IN_MEMORY  # heartbeats must not wait for a disk
        for name, value in settings.items():
            self.cfg.set(name, value)

    def begin(self) -> None:
        """Begin in a new worker what takes long and needs nothing of the worker."""
        self._begun = self._configuration.begin()

    def make_site(self) -> Site:
        return self._configuration.make_site(self._begun)

    def run(self) -> None:
        TridentArbiter(self).run()


def _forked(arbiter: Any, worker: Any) -> None:
    """In a new worker."""
    arbiter.worker_forked()


def _booted(worker: Any) -> None:
    """The worker now has its own signal handlers, so the stop signals that came before may arrive."""
    release_stop_signals()
    send_noted_signals()


def serve(configuration: ServerConfiguration) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status of the process.

    0 if all requests in flight were answered; 1 if the exit timeout ended first, a port is taken, or the site failed.
    The last line of the log is then the reason.
    Call it on the main thread, before any other thread exists.
    """
    max_connections = raise_file_limit()
    try:
        listeners = open_listeners(configuration.addresses)
    except BindFailed as error:
        log_failure(f"{error.code.value} - {error.message}", error.hint)
        for engine in configuration.engines:
            engine.stop(0)
        return 1
    try:
        TridentApplication(configuration, listeners, max_connections).run()
    except SystemExit as ending:
        if reason := configuration.failure_note.read():
            log_failure(reason)
        return 0 if not ending.code else 1
    return 0
