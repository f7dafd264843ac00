"""The formats of a log line: Triton's default, its ISO8601, and JSON.

An event is one line. The rows of its table follow it and begin with `|` or `+`; a command for a person to copy and the
lines of its traceback follow and begin with blanks. So no line can be mistaken for another event.
Source: docs/spec/trace-and-log.md section 6.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from math import isfinite

from core.observability.log_text import escaped, quoted

TABLE = "table"
COMMAND = "command"
_INDENT = "    "
_COLOURS = {"E": "\x1b[31m", "W": "\x1b[33m", "READY": "\x1b[32m", "UNAVAILABLE": "\x1b[31m", COMMAND: "\x1b[1m"}
_PLAIN = "\x1b[0m"
_STATE = re.compile(r"(?<=\| )(READY|UNAVAILABLE)(?= )")
_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class TextFormatter(logging.Formatter):
    """`<L><MMDD> <HH:MM:SS.uuuuuu> <pid> <file>:<line>] <message>`; with `iso8601` the time is first. Times are UTC.

    `escape` false leaves messages unquoted, for TRITON_SERVER_ESCAPE_LOG_MESSAGES=0. `colour` is for a terminal.
    """

    def __init__(self, *, iso8601: bool = False, escape: bool = True, colour: bool = False) -> None:
        super().__init__()
        self._iso8601 = iso8601
        self._escape = escape
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        place = f"{record.process} {escaped(record.filename)}:{record.lineno}]"
        lines = [f"{self._start(record)} {place} {quoted(message) if self._escape else message}"]
        table = record.__dict__.get(TABLE)
        if table is not None:
            rows = [_table_line(line) for line in str(table).split("\n")]
            lines += [_STATE.sub(self._coloured_state, row) for row in rows] if self._colour else rows
        command = record.__dict__.get(COMMAND)
        if command is not None:
            lines.append(_INDENT + self._coloured(COMMAND, escaped(str(command))))
        lines += [_INDENT + escaped(line) for line in _traceback(self, record).split("\n") if line]
        return "\n".join(lines)

    def _start(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        letter = _letter(record.levelno)
        if self._iso8601:
            return f"{when:%Y-%m-%dT%H:%M:%SZ} {self._coloured(letter, letter)}"
        return f"{self._coloured(letter, letter)}{when:%m%d %H:%M:%S.%f}"

    def _coloured(self, kind: str, text: str) -> str:
        return f"{_COLOURS[kind]}{text}{_PLAIN}" if self._colour and kind in _COLOURS else text

    def _coloured_state(self, found: re.Match[str]) -> str:
        return self._coloured(found[0], found[0])


class JsonFormatter(logging.Formatter):
    """One JSON object per event: time, level, logger, message, file, line, pid, and the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        event: dict[str, object] = {
            "time": f"{when:%Y-%m-%dT%H:%M:%S.%fZ}",
            "level": _level_name(record.levelno),
            "logger": record.name,
            "message": record.getMessage(),
            "file": record.filename,
            "line": record.lineno,
            "pid": record.process,
        }
        for name, value in record.__dict__.items():
            if name not in _OWN and value is not None:
                event.setdefault(name, _plain(value))
        if trace := _traceback(self, record):
            event["traceback"] = trace
        return json.dumps(event)


def _letter(level: int) -> str:
    if level >= logging.ERROR:
        return "E"
    return "W" if level >= logging.WARNING else "I"


def _level_name(level: int) -> str:
    names = {"E": "ERROR", "W": "WARNING", "I": "INFO" if level >= logging.INFO else "VERBOSE"}
    return names[_letter(level)]


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info and record.exc_info[0] is not None:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts)


def _table_line(line: str) -> str:
    safe = escaped(line)
    return safe if safe.startswith(("+", "|")) else f"| {safe}"


def _plain(value: object) -> object:
    """`value` as a JSON scalar; a value of any other type becomes its text."""
    if isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value)):
        return value
    return str(value)
