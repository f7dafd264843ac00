"""Logger: lines of the model in the server's log, with the file and line that wrote them.

Source: docs/spec/python-backend.md section 4.3.
"""

from __future__ import annotations

import os
import sys
from enum import Enum

from . import server
from .errors import text_of


class LogLevel(Enum):
    """The levels of a line, which the server knows by these values."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


_Level = LogLevel


class Logger:
    """Writes to the log of the server. Called on the class, from any thread. Raises TypeError for other types."""

    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str | bytes, level: _Level = _Level.INFO) -> None:
        _write(message, level)

    @staticmethod
    def log_info(message: str | bytes) -> None:
        _write(message, _Level.INFO)

    @staticmethod
    def log_warn(message: str | bytes) -> None:
        _write(message, _Level.WARNING)

    @staticmethod
    def log_error(message: str | bytes) -> None:
        _write(message, _Level.ERROR)

    @staticmethod
    def log_verbose(message: str | bytes) -> None:
        _write(message, _Level.VERBOSE)


def _write(message: str | bytes, level: LogLevel) -> None:
    message = text_of(message, "Logger: the message")
    if not isinstance(level, LogLevel):
        raise TypeError("Logger: the level must be one of Logger.INFO, WARNING, ERROR and VERBOSE")
    # This function, the method, and who called it.
    caller = sys._getframe(2)
    server.current().log(level.value, message, os.path.basename(caller.f_code.co_filename), caller.f_lineno)
