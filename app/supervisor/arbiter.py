"""The arbiter: starts the workers and the engines, restarts them, and ends with the exit status of the server.

Source: docs/spec/server-options.md sections 5 and 6.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import time
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer
from gunicorn.workers.workertmp import WorkerTmp

from trident.app.process.end import EXIT_FAILED, exit_now
from trident.app.process.heap import keep_memory_shared
from trident.app.process.stray_output import CapturedOutput, capture_output
from trident.app.supervisor.engine_child import EngineChild
from trident.app.supervisor.start import hold_stop_signals, note_stop_signals, release_stop_signals
from trident.core.interprocess.restarts import Restarts, end_text
from trident.core.observability.log import reopen_log_if_asked


class WorkerProcess:
    """What the arbiter needs to know of a worker. The worker itself is made in its own process, after the fork.

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
        """Whether the worker can serve. It is asked in the worker's process, when that ends."""
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
    _next_output: CapturedOutput | None = None

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
                engine.leave_output()
        for listener in self.LISTENERS:
            listener.sock.close()
        for worker in self.WORKERS.values():
            worker.tmp.close()
        self._leave_siblings()

    def _leave_siblings(self) -> None:
        for captured in self._output.values():
            captured.close()

    def spawn_worker(self) -> Any:
        started = self._restarts.started()
        arbiter_pid = os.getpid()
        hold_stop_signals()  # a worker releases them after its boot (app/supervisor/server.py)
        self._next_output = captured = capture_output()
        try:
            pid: int = super().spawn_worker()
            self._started[pid] = started
            if captured is not None:
                self._output[pid] = captured
            return pid
        except OSError:  # no memory or no process is free
            if captured is not None:
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
        """In a new worker, before anything else."""
        self._leave_siblings()
        if self._next_output is not None:
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
                self._engine_ended(engine, os.waitstatus_to_exitcode(status))
            elif worker is not None:
                if (captured := self._output.pop(pid, None)) is not None:
                    captured.end(pid)
                worker.tmp.close()
                self._worker_ended(pid, os.waitstatus_to_exitcode(status))

    def _worker_ended(self, pid: int, code: int) -> None:
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

    def _engine_ended(self, engine: EngineChild, code: int) -> None:
        if not engine.ended(code) and not self._stopping:
            raise HaltServer("the server could not be created", 1)

    def stop(self, graceful: bool = True) -> None:
        """Stop once, gracefully or not; signals during the graceful stop are ignored."""
        self._stopping = True
        if graceful:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            self.SIG_QUEUE: queue.SimpleQueue[int] = queue.SimpleQueue()
        until = time.monotonic() + self.cfg.graceful_timeout
        super().stop(graceful)
        # The engines stop last: until now front ends had requests in flight.
        for engine in self.engines:
            engine.begin_stop(graceful=graceful)
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

    def handle_int(self) -> None:
        """SIGINT is SIGTERM: one graceful stop."""
        self.handle_term()

    def handle_hup(self) -> None:
        """SIGHUP, from a closed terminal: one graceful stop. Under `nohup` the server continues."""
        self.handle_term()

    def handle_usr1(self) -> None:
        """SIGUSR1: all processes open the log file again, which was moved away."""
        super().handle_usr1()
        reopen_log_if_asked()
        for engine in self.engines:
            engine.reopen_log()

    def _ignore_signal(self) -> None:
        log.info("the number of workers and their configuration are fixed: signal ignored")

    handle_ttin = handle_ttou = handle_usr2 = handle_winch = _ignore_signal
