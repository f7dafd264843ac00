"""The engine's process as a child of the main process, which starts, restarts and ends it.

Source: docs/architecture.md section 5.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable

from trident.app.process.end import EXIT_FAILED, exit_now
from trident.app.process.stray_output import CapturedOutput, capture_output
from trident.app.supervisor.start import STOP_ENGINE, hold_stop_signals, release_stop_signals
from trident.core.interprocess.restarts import Restarts, end_text
from trident.core.observability.log import ask_to_reopen_log

_log = logging.getLogger("trident.server")

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

    def start_if_due(self, leave_behind: Callable[[], None]) -> None:
        """Start the process if it does not run. It first calls `leave_behind`, to close files of the main process."""
        if self.pid or not self._restarts.is_due():
            return
        self._restarts.started()
        hold_stop_signals()
        self._output = capture_output()
        try:
            self.pid = os.fork()
            if not self.pid:
                self._run_child(leave_behind)
        except OSError as error:  # no memory or no process is free: retry later
            if self._output is not None:
                self._output.close()
            _log.error("%s cannot be started: %s; the next try is in %d s", self._name, error, self._restarts.ended())
        finally:
            release_stop_signals()

    def _run_child(self, leave_behind: Callable[[], None]) -> None:
        status = EXIT_FAILED
        try:
            _reset_signals()
            leave_behind()
            if self._output is not None:
                self._output.begin()
            status = self._run()
        except BaseException:
            _log.exception("the engine's process failed")
        finally:
            exit_now(status)

    def ended(self, code: int) -> bool:
        """Record that the process ended with `code` (negative for a signal). Returns whether to restart it."""
        self._leave()
        if code == EXIT_FAILED:
            return False
        _log.error("%s %s and is restarted in %d s", self._name, end_text(code), self._restarts.ended())
        return True

    def begin_stop(self, *, graceful: bool = True) -> None:
        """Tell the process to stop, or kill it."""
        if self.pid:
            self._signal(STOP_ENGINE if graceful else signal.SIGKILL)

    def stop(self, within_s: float, *, graceful: bool = True) -> int:
        """Stop the process, and kill it after `within_s` seconds. Returns its exit status."""
        code = 0
        if self.pid:
            self.begin_stop(graceful=graceful)
            code = self._wait(time.monotonic() + within_s)
        self._clean_up()
        return code

    def reopen_log(self) -> None:
        """Have the process open the log file again."""
        if self.pid:
            self._signal(signal.SIGUSR1)

    def _wait(self, until: float) -> int:
        while True:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                return 0
            if pid:
                self._leave()
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > until:
                self._signal(signal.SIGKILL)
                until = float("inf")
            time.sleep(_POLL_S)

    def leave_output(self) -> None:
        """In another child: leave what this process prints to those whom it concerns."""
        if self._output is not None:
            self._output.close()

    def _leave(self) -> None:
        """Log what the ended process left behind, and forget it."""
        if self._output is not None:
            self._output.end(self.pid)
            self._output = None
        self.pid = 0

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


def _reset_signals() -> None:
    """Replace the inherited signal handlers in the new process. Until its engine exists, a stop just ends it."""
    signal.signal(STOP_ENGINE, lambda *_: os._exit(0))
    signal.signal(signal.SIGUSR1, lambda *_: ask_to_reopen_log())
    for number in (signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    release_stop_signals()
