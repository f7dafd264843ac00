"""The arbiter: starts the workers and the engine, restarts those that die, and ends with the status that the server
owes its caller.

Source: docs/spec/server-options.md sections 5 and 6.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import time
from typing import Any, NoReturn

from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer

from app.process_end import EXIT_FAILED, end_text, exit_now
from app.supervisor.engine_child import EngineChild
from app.supervisor.restarts import Restarts
from app.supervisor.stop_signals import hold_stop_signals, release_stop_signals

log = logging.getLogger("trident.server")

# To free what it has, when the front ends took all the time that a stop may take.
_LEAST_FOR_THE_ENGINE_S = 5.0
# The arbiter looks at the workers about every second. If it has not for so long, the whole server stood still.
_STOOD_STILL_S = 10.0


class TridentArbiter(Arbiter):  # type: ignore[misc]
    """gunicorn's arbiter with one graceful stop, an exit status, and no signals that change the number of workers."""

    _stopping = False
    _worker_status = 0
    _looked = 0.0
    _went_on = float("-inf")
    engine: EngineChild | None = None

    def setup(self, app: Any) -> None:
        super().setup(app)
        self._restarts = Restarts()
        self.engine = app.engine

    def init_signals(self) -> None:
        """May be called again. A SIGHUP that was ignored when the server was started, as by `nohup`, stays so."""
        is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        super().init_signals()
        if is_nohup:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def start(self) -> None:
        """Open the ports. Who asks to stop meanwhile is heard in its turn.

        To hold the signals instead would not do: numpy's library has threads, and would be told in the place of this.
        """
        self.init_signals()
        super().start()

    def manage_workers(self) -> None:
        """Start the engine and the workers that are missing, if their turn has come."""
        if self.engine is not None:
            self.engine.start_if_due(self._close_all)
        if len(self.WORKERS) >= self.num_workers or self._restarts.is_due():
            super().manage_workers()

    def _close_all(self) -> None:
        """In a child that is no worker: ports must not stay open because it has them, too."""
        for listener in self.LISTENERS:
            listener.sock.close()
        for worker in self.WORKERS.values():
            worker.tmp.close()

    def spawn_worker(self) -> Any:
        self._restarts.started()
        arbiter_pid = os.getpid()
        hold_stop_signals()  # the worker lets them through when it has booted (app/supervisor/application.py)
        try:
            return super().spawn_worker()
        except SystemExit as ending:
            if os.getpid() == arbiter_pid:
                raise
            # The worker is done: nothing that the caller of the arbiter still has to do is the worker's.
            exit_now(ending.code if isinstance(ending.code, int) else 1)
        finally:
            release_stop_signals()

    def murder_workers(self) -> None:
        """End workers without a heartbeat; but not for the time in which nobody had one.

        A container that was paused, a virtual machine that was moved: what has its models loaded must not load them
        all again because the clock went on.
        """
        now = time.monotonic()
        if now - self._looked > _STOOD_STILL_S:
            self._went_on = now
        self._looked = now
        if now - self._went_on > self.timeout:
            super().murder_workers()

    def reap_workers(self) -> None:
        """Take leave of workers that ended. Raises HaltServer if the site failed or the worker could not start."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            worker = self.WORKERS.pop(pid, None)
            if self.engine is not None and pid == self.engine.pid:
                self._engine_ended(self.engine, os.waitstatus_to_exitcode(status))
            elif worker is not None:
                worker.tmp.close()
                self._worker_ended(pid, os.waitstatus_to_exitcode(status))

    def _worker_ended(self, pid: int, code: int) -> None:
        if self._stopping:
            self._worker_status = self._worker_status or code
        elif code == EXIT_FAILED:
            raise HaltServer("the server could not be created", 1)
        elif code in (self.WORKER_BOOT_ERROR, self.APP_LOAD_ERROR):
            raise HaltServer("the worker could not start", 1)
        else:
            delay = self._restarts.ended()
            log.error("the worker (pid %d) %s and is restarted in %d s", pid, end_text(code), delay)

    def _engine_ended(self, engine: EngineChild, code: int) -> None:
        if not engine.ended(code) and not self._stopping:
            raise HaltServer("the server could not be created", 1)

    def stop(self, graceful: bool = True) -> None:
        """Stop once, gracefully or not; signals that come during the graceful stop are ignored."""
        self._stopping = True
        if graceful:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            self.SIG_QUEUE: queue.SimpleQueue[int] = queue.SimpleQueue()
        until = time.monotonic() + self.cfg.graceful_timeout
        super().stop(graceful)
        # Last of all: until now front ends had requests in flight.
        if self.engine is not None:
            left = max(_LEAST_FOR_THE_ENGINE_S, until - time.monotonic())
            code = self.engine.stop(left, graceful=graceful)
            self._worker_status = self._worker_status or code

    def halt(self, reason: str | None = None, exit_status: int = 0) -> NoReturn:
        try:
            super().halt(reason, exit_status)
        except SystemExit as ending:
            status = ending.code or (1 if self._worker_status else 0)
            raise SystemExit(status) from None
        raise SystemExit(exit_status)

    def handle_int(self) -> None:
        """SIGINT is SIGTERM: one graceful stop."""
        self.handle_term()

    def handle_hup(self) -> None:
        """SIGHUP, a terminal that was closed: one graceful stop; `nohup` keeps the server."""
        self.handle_term()

    def _ignore_signal(self) -> None:
        log.info("the number of workers and their configuration are fixed: signal ignored")

    handle_ttin = handle_ttou = handle_usr2 = handle_winch = _ignore_signal
