"""The engine's process, as the main process sees it: started, started again, and ended last.

Source: docs/architecture.md section 5.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable

from app.process_end import EXIT_FAILED, end_text, exit_now
from app.supervisor.restarts import Restarts
from app.supervisor.stop_signals import STOP_ENGINE, hold_stop_signals, release_stop_signals

_log = logging.getLogger("trident.server")

_POLL_S = 0.05
# What the main process handles itself, and what others send to all of its processes.
_NOT_FOR_THE_ENGINE = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)


class EngineChild:
    """`run` is what the process does, its result the exit status. Main process only, which has no other threads."""

    def __init__(self, run: Callable[[], int], clean_up: Callable[[], None]) -> None:
        """`clean_up` is called when the process has ended for good."""
        self._run = run
        self._clean_up = clean_up
        self._restarts = Restarts()
        self.pid = 0

    def start_if_due(self, leave_behind: Callable[[], None]) -> None:
        """Start the process if there is none. `leave_behind` is called in it first: it closes what is not its own."""
        if self.pid or not self._restarts.is_due():
            return
        self._restarts.started()
        hold_stop_signals()
        try:
            self.pid = os.fork()
            if not self.pid:
                self._be(leave_behind)
        except OSError as error:  # no memory or no process left: perhaps there is later
            _log.error("the engine cannot be started: %s; the next try is in %d s", error, self._restarts.ended())
        finally:
            release_stop_signals()

    def _be(self, leave_behind: Callable[[], None]) -> None:
        status = EXIT_FAILED
        try:
            _forget_signals()
            leave_behind()
            status = self._run()
        except BaseException:
            _log.exception("the engine's process failed")
        finally:
            exit_now(status)

    def ended(self, code: int) -> bool:
        """Note that the process ended with `code`, negative for a signal; whether the server can go on."""
        self.pid = 0
        if code == EXIT_FAILED:
            return False
        _log.error("the engine %s and is restarted in %d s", end_text(code), self._restarts.ended())
        return True

    def stop(self, within_s: float, *, graceful: bool = True) -> int:
        """End the process, and kill it if it does not end in time; its exit status."""
        code = 0
        if self.pid:
            self._signal(STOP_ENGINE if graceful else signal.SIGKILL)
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
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > until:
                self._signal(signal.SIGKILL)
                until = float("inf")
            time.sleep(_POLL_S)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


def _forget_signals() -> None:
    """In the new process: the main one's ways with signals are not its own. Until there is an engine, it just ends."""
    signal.signal(STOP_ENGINE, lambda *_: os._exit(0))
    for number in (signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    for number in _NOT_FOR_THE_ENGINE:
        signal.signal(number, signal.SIG_IGN)
    release_stop_signals()
