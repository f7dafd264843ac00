"""Sends to the log what the interpreter itself would print: warnings, and exceptions that nobody catches."""

from __future__ import annotations

import logging
import sys
import threading
from types import TracebackType
from typing import Any

_log = logging.getLogger("trident.server")


def log_stray_messages() -> None:
    """From now on, on all threads of this process and of those that are forked from it."""
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    sys.unraisablehook = _unraisable
    threading.excepthook = _in_thread


def log_hub_failures(hub: Any) -> None:
    """The same for the greenlets and callbacks of a gevent hub."""
    hub.print_exception = _in_greenlet


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        _log.error("interrupted")
        return
    _log.critical("an unexpected error ended the process", exc_info=(kind, error, trace))


def _unraisable(found: Any) -> None:
    what = found.err_msg or "an exception was ignored"
    _log.error("%s in %r", what, found.object, exc_info=(found.exc_type, found.exc_value, found.exc_traceback))


def _in_thread(found: Any) -> None:
    if issubclass(found.exc_type, SystemExit):
        return
    name = found.thread.name if found.thread is not None else "unknown"
    _log.error("thread %s failed", name, exc_info=(found.exc_type, found.exc_value, found.exc_traceback))


def _in_greenlet(context: Any, kind: Any, error: Any, trace: Any) -> None:
    exc_info = (kind, error, trace) if isinstance(error, BaseException) else None
    _log.error("%s failed with %s", context, getattr(kind, "__name__", kind), exc_info=exc_info)
