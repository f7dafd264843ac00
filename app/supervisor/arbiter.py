"""The main process: its configuration, gunicorn's application, and the arbiter, which starts the workers and the
engines, restarts them, and ends with the exit status of the server.

Source: docs/spec/server-options.md sections 4 to 6; docs/architecture.md section 5.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from socket import socket
from typing import TYPE_CHECKING, Any, NoReturn

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer
from gunicorn.glogging import Logger
from gunicorn.workers.workertmp import WorkerTmp

from trident.app.process.environment import EXIT_FAILED, exit_now, keep_memory_shared
from trident.app.process.files import IN_MEMORY, raise_file_limit
from trident.app.process.stray_output import CapturedOutput
from trident.app.supervisor.start import (
    END_LOADS,
    STOP_ENGINE,
    FailureNote,
    hold_stop_signals,
    note_stop_signals,
    release_stop_signals,
    send_noted_signals,
)
from trident.app.worker.listening_sockets import BindFailed, ConnectionLimits, StopTimes, open_listeners
from trident.core.interprocess.restarts import Restarts, end_text
from trident.core.observability.log import ask_to_reopen_log, log_failure, reopen_log_if_asked

if TYPE_CHECKING:
    from trident.app.settings.server import Service
    from trident.app.sites.engine_start import EngineStart
    from trident.app.sites.site import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfiguration:
    """The server that the supervisor runs.

    Its sockets listen for `services`; `last_ports` close after all others. `begin` is called in a worker, after
    the fork and before the worker imports the modules that serve. `make_site` is called there later, with the result of
    `begin`. `engines` are the processes behind the workers, none if each site contains the engine. `shared_modules` are
    imported before the workers are forked. A process that cannot serve writes the reason into `failure_note`.
    """

    services: tuple[Service, ...]
    make_site: Callable[[EngineStart | None], Site]
    begin: Callable[[], EngineStart | None] = lambda: None
    last_ports: frozenset[int] = frozenset()
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    stop_times: StopTimes = field(default_factory=StopTimes)
    workers: int = 1
    shared_modules: tuple[str, ...] = ()
    engines: tuple[EngineChild, ...] = ()
    failure_note: FailureNote = field(default_factory=FailureNote)


def serve(configuration: ServerConfiguration) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status of the process.

    0 if all requests in flight were answered; 1 if the exit timeout ended first, a port is taken, or the site failed.
    The last line of the log is then the reason.
    Call it on the main thread, before any other thread exists.
    """
    max_connections = raise_file_limit()
    try:
        listeners = open_listeners(configuration.services)
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


_STOPPING = "Shutting down"


class GunicornLog(Logger):  # type: ignore[misc]
    """Sends gunicorn's messages to the logger `trident.gunicorn`, and discards its access log."""

    def setup(self, cfg: Any) -> None:
        self.error_log = logging.getLogger("trident.gunicorn")

    def reopen_files(self) -> None:
        """SIGUSR1, in the main process and in a worker, perhaps in the middle of an event."""
        ask_to_reopen_log()

    def error(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """The stop of a server is not an error, whatever its exit status; the last line of the log says what was."""
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
        self.limits = configuration.limits
        self.shared_modules = configuration.shared_modules
        self.last_ports = configuration.last_ports
        self.stop_times = configuration.stop_times
        super().__init__()

    def load_config(self) -> None:
        configuration, times = self._configuration, self.stop_times
        settings: dict[str, Any] = {
            "bind": [f"fd://{descriptor}" for descriptor in self._descriptors],
            "workers": configuration.workers,
            "worker_class": "trident.app.supervisor.arbiter.WorkerProcess",
            "worker_connections": self._max_connections,
            "preload_app": False,
            "timeout": _HEARTBEAT_TIMEOUT_S,
            "graceful_timeout": int(times.drain_grace_s + times.exit_timeout_s) + _STOP_RESERVE_S,
            "keepalive": max(1, int(self.limits.keepalive_s)),
            "limit_request_line": 8190,
            "secure_scheme_headers": {},
            "logger_class": GunicornLog,
            "control_socket_disable": True,
            "proc_name": "trident",
            "post_fork": lambda arbiter, worker: arbiter.worker_forked(),
            "post_worker_init": _booted,
        }
        if os.access(IN_MEMORY, os.W_OK):
            settings["worker_tmp_dir"] = IN_MEMORY  # heartbeats must not wait for a disk
        for name, value in settings.items():
            self.cfg.set(name, value)

    def begin(self) -> None:
        self._begun = self._configuration.begin()

    def make_site(self) -> Site:
        return self._configuration.make_site(self._begun)

    def run(self) -> None:
        TridentArbiter(self).run()


def _booted(worker: Any) -> None:
    """The worker now has its own signal handlers, so the stop signals that came before may arrive."""
    release_stop_signals()
    send_noted_signals()


class WorkerProcess:
    """A worker as the arbiter sees it. The worker itself is made in its own process, after the fork.

    So the main process, which only waits, has none of the modules that serve: 23 MB less of resident memory. But the
    `shared_modules` of `app` are imported before the fork: several workers then import them once and share the memory.
    """

    def __init__(self, age: int, ppid: int, sockets: list[Any], app: Any, timeout: float, cfg: Any, log: Any) -> None:
        for module in app.shared_modules:
            import_module(module)
        keep_memory_shared()
        self._app = app
        self._arguments = (age, ppid, sockets, app, timeout, cfg, log)
        self._worker: Any = None
        self.age = age
        self.pid: int | str = "[booting]"
        self.aborted = False
        self.tmp = WorkerTmp(cfg)

    @property
    def booted(self) -> bool:
        """True if the worker can serve. Read in the worker's process, when that ends."""
        return self._worker is not None and self._worker.booted

    def init_process(self) -> None:
        """Make the worker in its own process, and serve until it ends with SystemExit."""
        note_stop_signals()
        self._app.begin()
        from trident.app.worker.worker import TridentWorker

        self._worker = TridentWorker(*self._arguments)
        # The arbiter looks for the heartbeat in the file that both processes have.
        self._worker.tmp.close()
        self._worker.tmp = self.tmp
        self._worker.pid = self.pid
        self._worker.init_process()


log = logging.getLogger("trident.server")
# The time for the engine to free its resources after front ends that took all the time of the stop.
_MIN_ENGINE_STOP_S = 5.0
# The arbiter checks the workers about every second. After a longer gap the whole server was paused.
_PAUSE_S = 10.0


class TridentArbiter(Arbiter):  # type: ignore[misc]
    """gunicorn's arbiter with one graceful stop, an exit status, and no signals that change the number of workers."""

    _stopping = False
    _worker_status = 0
    _checked_at = 0.0
    _resumed_at = float("-inf")
    engines: tuple[EngineChild, ...] = ()
    _next_output: CapturedOutput

    def setup(self, app: Any) -> None:
        super().setup(app)
        self._restarts = Restarts()
        self._started: dict[int, float] = {}
        self._output: dict[int, CapturedOutput] = {}
        self._failure_note = app.failure_note
        self.engines = app.engines

    def init_signals(self) -> None:
        """May be called again. SIGHUP stays ignored if it was ignored at the start, as under `nohup`."""
        is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        super().init_signals()
        if is_nohup:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def start(self) -> None:
        """Open the ports. A stop signal that arrives meanwhile is queued.

        Blocking the signals instead would not work: the threads of numpy's library would receive them.
        """
        self.init_signals()
        super().start()

    def manage_workers(self) -> None:
        """Start the engines and the missing workers, if their restart is due."""
        for engine in self.engines:
            engine.start_if_due(partial(self._close_all, engine))
        if len(self.WORKERS) >= self.num_workers or self._restarts.is_due():
            super().manage_workers()

    def _close_all(self, own: EngineChild) -> None:
        """In an engine's process: close the ports, which would stay open as long as it has them."""
        for engine in self.engines:
            if engine is not own:
                engine.close_output()
        for listener in self.LISTENERS:
            listener.sock.close()
        for worker in self.WORKERS.values():
            worker.tmp.close()
        self._close_outputs()

    def _close_outputs(self) -> None:
        for captured in self._output.values():
            captured.close()

    def spawn_worker(self) -> Any:
        started = self._restarts.started()
        arbiter_pid = os.getpid()
        hold_stop_signals()  # a worker releases them after its boot (app/supervisor/arbiter.py)
        self._next_output = captured = CapturedOutput()
        try:
            pid: int = super().spawn_worker()
            self._started[pid] = started
            self._output[pid] = captured
            return pid
        except OSError:  # no memory or no process is free
            captured.close()
            raise
        except SystemExit as ending:
            if os.getpid() == arbiter_pid:
                raise
            # This is the worker, at its end: it must not return into the caller of the arbiter.
            exit_now(ending.code if isinstance(ending.code, int) else 1)
        finally:
            release_stop_signals()

    def worker_forked(self) -> None:
        self._close_outputs()
        self._next_output.begin()

    def murder_workers(self) -> None:
        """Kill workers without a heartbeat, unless the whole server was paused.

        After the pause of a container or the migration of a virtual machine, workers must not lose their loaded models
        because the clock has advanced.
        """
        now = time.monotonic()
        if now - self._checked_at > _PAUSE_S:
            self._resumed_at = now
        self._checked_at = now
        if now - self._resumed_at > self.timeout:
            super().murder_workers()

    def reap_workers(self) -> None:
        """Reap the processes that ended. Raises HaltServer if a site failed or a worker could not start."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            worker = self.WORKERS.pop(pid, None)
            engine = next((each for each in self.engines if each.pid == pid), None)
            if engine is not None:
                if not engine.ended(os.waitstatus_to_exitcode(status)) and not self._stopping:
                    raise HaltServer("the server could not be created", 1)
            elif worker is not None:
                self._output.pop(pid).end(pid)
                worker.tmp.close()
                code = os.waitstatus_to_exitcode(status)
                started = self._started.pop(pid)
                if self._stopping:
                    self._worker_status = self._worker_status or code
                elif code == EXIT_FAILED:
                    raise HaltServer("the server could not be created", 1)
                elif code in (self.WORKER_BOOT_ERROR, self.APP_LOAD_ERROR):
                    raise HaltServer("the worker could not start", 1)
                else:
                    delay = self._restarts.ended(started)
                    log.error("the worker (pid %d) %s and is restarted in %d s", pid, end_text(code), delay)

    def stop(self, graceful: bool = True) -> None:
        """Stop once, gracefully or not; signals during the graceful stop are ignored."""
        self._stopping = True
        if graceful:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            self.SIG_QUEUE: queue.SimpleQueue[int] = queue.SimpleQueue()
        until = time.monotonic() + self.cfg.graceful_timeout
        for engine in self.engines if graceful else ():
            engine.send_signal(END_LOADS)
        super().stop(graceful)
        # The engines stop last: until now front ends had requests in flight.
        for engine in self.engines:
            engine.send_signal(STOP_ENGINE if graceful else signal.SIGKILL)
        until = max(until, time.monotonic() + _MIN_ENGINE_STOP_S)
        for engine in self.engines:
            code = engine.stop(until - time.monotonic(), graceful=graceful)
            self._worker_status = self._worker_status or code

    def halt(self, reason: str | None = None, exit_status: int = 0) -> NoReturn:
        if reason is not None and not self._failure_note.read():
            self._failure_note.write(f"Internal - {reason}")
        try:
            super().halt(None, exit_status)  # the last line of the log has the reason, not one of gunicorn's
        except SystemExit as ending:
            status = ending.code or (1 if self._worker_status else 0)
            raise SystemExit(status) from None
        raise SystemExit(exit_status)

    # SIGINT, and SIGHUP from a closed terminal: one graceful stop. Under `nohup` the server continues.
    handle_int = handle_hup = Arbiter.handle_term

    def handle_usr1(self) -> None:
        """SIGUSR1: all processes open the log file again, which was moved away."""
        super().handle_usr1()
        reopen_log_if_asked()
        for engine in self.engines:
            engine.send_signal(signal.SIGUSR1)

    def _ignore_signal(self) -> None:
        log.info("the number of workers and their configuration are fixed: signal ignored")

    handle_ttin = handle_ttou = handle_usr2 = handle_winch = _ignore_signal


_POLL_S = 0.05
# Signals that the main process handles, and that others send to all processes of the server.
_IGNORED_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGUSR2,
    signal.SIGWINCH,
)


class EngineChild:
    """Used in the main process, which has no other threads."""

    def __init__(self, run: Callable[[], int], clean_up: Callable[[], None], name: str = "the engine") -> None:
        """The child calls `run`, whose result is its exit status. `clean_up` is called by `stop`. `name` is for the
        log.
        """
        self._run = run
        self._name = name
        self._clean_up = clean_up
        self._restarts = Restarts()
        self._output: CapturedOutput | None = None
        self.pid = 0

    def start_if_due(self, close_inherited: Callable[[], None]) -> None:
        """Start the process if it does not run. It first calls `close_inherited` for files of the main process."""
        if self.pid or not self._restarts.is_due():
            return
        self._restarts.started()
        hold_stop_signals()
        self._output = captured = CapturedOutput()
        try:
            self.pid = os.fork()
            if not self.pid:
                status = EXIT_FAILED
                try:
                    _reset_signals()
                    close_inherited()
                    captured.begin()
                    status = self._run()
                except BaseException:
                    log.exception("the engine's process failed")
                finally:
                    exit_now(status)
        except OSError as error:  # no memory or no process is free: retry later
            captured.close()
            self._output = None
            log.error("%s cannot be started: %s; the next try is in %d s", self._name, error, self._restarts.ended())
        finally:
            release_stop_signals()

    def ended(self, code: int) -> bool:
        """Record that the process ended with `code` (negative for a signal). Returns whether to restart it."""
        self._forget()
        if code == EXIT_FAILED:
            return False
        log.error("%s %s and is restarted in %d s", self._name, end_text(code), self._restarts.ended())
        return True

    def send_signal(self, number: int) -> None:
        """Send the process a signal, if it runs."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def stop(self, within_s: float, *, graceful: bool = True) -> int:
        """Stop the process, and kill it after `within_s` seconds. Returns its exit status."""
        code = 0
        if self.pid:
            self.send_signal(STOP_ENGINE if graceful else signal.SIGKILL)
            code = self._wait(time.monotonic() + within_s)
        self._clean_up()
        return code

    def _wait(self, until: float) -> int:
        while True:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                return 0
            if pid:
                self._forget()
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > until:
                self.send_signal(signal.SIGKILL)
                until = float("inf")
            time.sleep(_POLL_S)

    def close_output(self) -> None:
        """Close the files with the output of this process, in another child."""
        if self._output is not None:
            self._output.close()

    def _forget(self) -> None:
        if self._output is not None:
            self._output.end(self.pid)
            self._output = None
        self.pid = 0


def _reset_signals() -> None:
    """Replace the inherited signal handlers in the new process. Until its engine exists, a stop just ends it."""
    signal.signal(STOP_ENGINE, lambda *_: os._exit(0))
    signal.signal(END_LOADS, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, lambda *_: ask_to_reopen_log())
    for number in (signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    release_stop_signals()
