"""The configuration of the log: which events are written, where, and in which format.

Every module logs to `logging.getLogger("trident.<part>")`. INFO, WARNING and ERROR are the standard levels. Verbose
level 1 is DEBUG, and each higher verbose level is one less, so that `--log-verbose=n` shows verbose levels 1 to n.
Source: docs/spec/trace-and-log.md section 6.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, fields, replace
from typing import TextIO

from core.errors import ConfigInvalid
from core.observability import console
from core.observability.line_writer import FILE_WRITE, FLUSH_S, LineWriter
from core.observability.log_file import LogFile
from core.observability.log_formats import COMMAND, TABLE, JsonFormatter, TextFormatter
from core.observability.switches import SWITCHES

_ROOT_LOGGER = "trident"
_server_log = logging.getLogger("trident.server")
_LOWEST_LEVEL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLevels:
    """What can be changed while the server runs. `verbose` is the highest verbose level shown, 0 for none. `format` is
    default, ISO8601 or json. `access` is the value of --log-access, `timing` that of --response-timing, and
    `histograms` that of histogram_latencies in --metrics-config."""

    verbose: int = 0
    info: bool = True
    warning: bool = True
    error: bool = True
    format: str = "default"
    access: str = "false"
    timing: bool = False
    histograms: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions(LogLevels):
    """With an empty `file` the log goes to the console: warnings and errors go to stderr, other events to stdout.

    `colour`: a terminal gets them in colours.
    """

    file: str = ""
    escape: bool = True
    colour: bool = False


FORMATS = ("default", "ISO8601", "json")
_in_force = LogOptions()


def log_options() -> LogOptions:
    """The configuration of this process's log."""
    return _in_force


def log_levels() -> LogLevels:
    """What of it can be changed."""
    return LogLevels(**{each.name: getattr(_in_force, each.name) for each in fields(LogLevels)})


def verbose_level(level: int) -> int:
    """The logging level of a verbose message of `level` (1 and up)."""
    return max(_LOWEST_LEVEL, logging.DEBUG + 1 - level)


def log_table(logger: logging.Logger, heading: str, table: str) -> None:
    """Log `table` (bordered lines) under `heading`, as one event."""
    logger.info(heading, extra={TABLE: table}, stacklevel=2)


def log_command(logger: logging.Logger, heading: str, command: str) -> None:
    """Log a `command` that a person may copy under `heading`, as one event."""
    logger.info(heading, extra={COMMAND: command}, stacklevel=2)


def configure_logging(options: LogOptions, *, out: TextIO | None = None, err: TextIO | None = None) -> None:
    """Configure the log of this process; a second call replaces the first configuration.

    `out` and `err` replace stdout and stderr. Call it before the workers are forked. Raises ConfigInvalid if the log
    file cannot be opened; the log then goes to the console.
    """
    out, err = out or console.stdout(), err or console.stderr()
    unopened = None
    try:
        sinks: list[_Sink] = _file_sinks(options, err) if options.file else _console_sinks(out, err)
    except ConfigInvalid as error:
        sinks, unopened = _console_sinks(out, err), error
    root = logging.getLogger()
    close_log()
    for sink in sinks:
        sink.addFilter(_is_switched_on)
        root.addHandler(sink)
    # Third-party packages log warnings and errors only: their other messages are not part of our verbose levels.
    root.setLevel(logging.WARNING)
    _set(options)
    if unopened is not None:
        raise unopened


def change_log(levels: LogLevels) -> None:
    """Change the log of this process from the next event on. Any thread."""
    _set(replace(_in_force, **{each.name: getattr(levels, each.name) for each in fields(LogLevels)}))


def _set(options: LogOptions) -> None:
    global _in_force
    _in_force = options
    SWITCHES.set(verbose=options.verbose, access=options.access, timing=options.timing, histograms=options.histograms)
    for sink in _sinks():
        sink.setFormatter(_formatter(options, colour=options.colour and sink.is_terminal))
    shown = verbose_level(options.verbose) if options.verbose > 0 else logging.INFO
    logging.getLogger(_ROOT_LOGGER).setLevel(shown)


def log_failure(reason: str, hint: str | None = None) -> None:
    """Log why the server cannot be created, as Triton prints it: whatever the switches say, and on stderr also if the
    log has a file. It is the last line: those on stdout are written before."""
    flush_log()
    _server_log.critical(
        "error: creating server: %s%s", reason, f" (hint: {hint})" if hint else "", extra={"hint": hint}, stacklevel=2
    )


def move_console(out: TextIO, err: TextIO) -> None:
    """Let the log write to `out` and `err` what it wrote to stdout and stderr so far."""
    moves = ((console.stdout(), out), (console.stderr(), err))
    console.set_streams(out, err)
    for sink in _sinks():
        for before, now in moves:
            if sink.target is before:
                sink.move_to(now)


def flush_log(within_s: float = FLUSH_S) -> None:
    """Wait until the events so far are written, but no longer than `within_s` for each stream, and not at all for a
    reader that has not read for that long."""
    for sink in _sinks():
        sink.flush(within_s)


def close_log() -> None:
    """Undo `configure_logging`: detach its sinks and close its file."""
    root = logging.getLogger()
    for sink in _sinks():
        root.removeHandler(sink)
        sink.close()


def ask_to_reopen_log() -> None:
    """Have this process open the log file again, which another program has moved away: before its next event, or by
    `reopen_log_if_asked`. May be called in a signal handler."""
    for sink in _sinks():
        sink.ask_to_reopen()


def reopen_log_if_asked() -> None:
    """Leave a log file that was moved away also in a process that has nothing to log. Any thread."""
    for sink in _sinks():
        sink.reopen_if_asked()


def _sinks() -> list[_Sink]:
    return [each for each in logging.getLogger().handlers if isinstance(each, _Sink)]


class _Sink(logging.Handler):
    """The log file, or a stream of the console. A stream without a descriptor, such as a StringIO, cannot stall and is
    written at once."""

    def __init__(self, target: LogFile | TextIO) -> None:
        super().__init__()
        self._failures = _Failures()
        self.move_to(target)
        size = {"write_size": FILE_WRITE} if isinstance(target, LogFile) else {}
        self._writer = LineWriter(self._write, self._tell_failure, self._tell_dropped, **size)

    @property
    def is_terminal(self) -> bool:
        return not isinstance(self.target, LogFile) and self.target.isatty()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n"
        except Exception:
            self.handleError(record)
            return
        if self._may_stall:
            self._writer.put(line.encode(self._encoding, "backslashreplace"))
            if record.levelno >= logging.CRITICAL:  # the process may be about to end
                self._writer.flush()
            return
        try:
            self._write(line.encode(self._encoding, "backslashreplace"))
        except (OSError, ValueError) as error:
            self._tell_failure(str(error))

    def flush(self, within_s: float = FLUSH_S) -> None:
        self._writer.flush(within_s)

    def close(self) -> None:
        if self._writer.close() and isinstance(self.target, LogFile):
            self.target.close()
        super().close()

    def ask_to_reopen(self) -> None:
        if isinstance(self.target, LogFile):
            self.target.ask_to_reopen()

    def reopen_if_asked(self) -> None:
        if isinstance(self.target, LogFile) and self.target.is_asked:
            self._writer.put(b"")

    def move_to(self, target: LogFile | TextIO) -> None:
        """Write to `target` from now on. When nothing waits to be written, as right after a fork."""
        self.target = target
        self._may_stall = isinstance(target, LogFile) or console.has_descriptor(target)
        self._encoding = "utf-8" if isinstance(target, LogFile) else target.encoding or "utf-8"

    def _write(self, lines: bytes) -> None:
        if isinstance(self.target, LogFile):
            self.target.write(lines)
        elif self._may_stall:
            console.write_all(self.target.fileno(), lines)
        else:
            self.target.write(lines.decode(self._encoding))
            self.target.flush()

    def _tell_failure(self, error: str) -> None:
        self._failures.tell(f"the log cannot be written: {error}; its events are lost")

    def _tell_dropped(self, count: int) -> None:
        text = "%d log lines were dropped because the reader of the log did not keep up"
        record = _server_log.makeRecord(_server_log.name, logging.WARNING, __file__, 0, text, (count,), None)
        with contextlib.suppress(OSError, ValueError):
            self._write(f"{self.format(record)}\n".encode())


class _Failures:
    """What the log cannot say itself (a closed pipe, a full disk) is said on stderr, once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            with contextlib.suppress(OSError, ValueError):
                console.print_line(text, console.stderr())


def _is_switched_on(record: logging.LogRecord) -> bool:
    """The switches log-info, log-warning and log-error. Verbose messages depend on their level alone, and the reason
    for which the server ends is always shown."""
    if record.levelno >= logging.ERROR:
        return _in_force.error or record.levelno >= logging.CRITICAL
    if record.levelno >= logging.WARNING:
        return _in_force.warning
    return _in_force.info or record.levelno < logging.INFO


def _formatter(options: LogOptions, *, colour: bool) -> logging.Formatter:
    if options.format == "json":
        return JsonFormatter()
    return TextFormatter(iso8601=options.format == "ISO8601", escape=options.escape, colour=colour)


def _console_sinks(out: TextIO, err: TextIO) -> list[_Sink]:
    quiet, loud = _Sink(out), _Sink(err)
    quiet.addFilter(lambda record: record.levelno < logging.WARNING)
    loud.setLevel(logging.WARNING)
    return [quiet, loud]


def _file_sinks(options: LogOptions, err: TextIO) -> list[_Sink]:
    file = _Sink(LogFile(options.file, _Failures().tell))
    # Who starts a server looks at stderr, and must see there why it ends.
    loudest = _Sink(err)
    loudest.setLevel(logging.CRITICAL)
    return [file, loudest]
