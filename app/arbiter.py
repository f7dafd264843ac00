"""The arbiter: starts the worker, restarts it if it dies, and ends with the status that the server owes its caller.

Source: spec/server-options.md sections 5 and 6.
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

from app.worker import EXIT_SITE_FAILED, exit_now

log = logging.getLogger("trident.server")

_EARLY_S = 10.0
_MAX_DELAY_S = 31


def restart_delay_s(early_ends: int) -> int:
    """Seconds before the worker is started again, after so many that ended early: at once the first time."""
    return min(_MAX_DELAY_S, (1 << max(0, early_ends - 1)) - 1)


class TridentArbiter(Arbiter):  # type: ignore[misc]
    """gunicorn's arbiter with one graceful stop, an exit status, and no signals that change the number of workers."""

    _stopping = False
    _worker_status = 0
    _early_ends = 0
    _spawned = 0.0
    _next_spawn = 0.0

    def manage_workers(self) -> None:
        """Start the worker if there is none, and if its turn has come."""
        if self.WORKERS or time.monotonic() >= self._next_spawn:
            super().manage_workers()

    def spawn_worker(self) -> Any:
        self._spawned = time.monotonic()
        arbiter_pid = os.getpid()
        try:
            return super().spawn_worker()
        except SystemExit as ending:
            if os.getpid() == arbiter_pid:
                raise
            # The worker is done: nothing that the caller of the arbiter still has to do is the worker's.
            exit_now(ending.code if isinstance(ending.code, int) else 1)

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
            if worker is not None:
                worker.tmp.close()
                self._worker_ended(pid, os.waitstatus_to_exitcode(status))

    def _worker_ended(self, pid: int, code: int) -> None:
        if self._stopping:
            self._worker_status = self._worker_status or code
        elif code == EXIT_SITE_FAILED:
            raise HaltServer("the server could not be created", 1)
        elif code in (self.WORKER_BOOT_ERROR, self.APP_LOAD_ERROR):
            raise HaltServer("the worker could not start", 1)
        else:
            now = time.monotonic()
            self._early_ends = self._early_ends + 1 if now - self._spawned < _EARLY_S else 0
            delay = restart_delay_s(self._early_ends)
            self._next_spawn = now + delay
            end = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
            log.error("the worker (pid %d) %s and is restarted in %d s", pid, end, delay)

    def stop(self, graceful: bool = True) -> None:
        """Stop once, gracefully or not; signals that come during the graceful stop are ignored."""
        self._stopping = True
        if graceful:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            self.SIG_QUEUE: queue.SimpleQueue[int] = queue.SimpleQueue()
        super().stop(graceful)

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

    def _ignore_signal(self) -> None:
        log.info("there is one worker and its configuration is fixed: signal ignored")

    handle_hup = handle_ttin = handle_ttou = handle_usr2 = handle_winch = _ignore_signal
