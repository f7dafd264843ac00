"""The configuration of the log: which events are written, where, and in which format.

Every module logs to `logging.getLogger("trident.<part>")`. INFO, WARNING and ERROR are the standard levels. Verbose
level 1 is DEBUG, and each higher verbose level is one less, so that `--log-verbose=n` shows verbose levels 1 to n.
Source: docs/spec/trace-and-log.md section 6.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from logging.handlers import QueueHandler
from math import isfinite
from pathlib import PurePath
from queue import Empty, SimpleQueue
from typing import TextIO
from weakref import WeakSet

from trident.core.errors import ConfigInvalid
from trident.core.observability.switches import SWITCHES

# Control characters (C0, and C1 with its terminal escape), Unicode line separators, characters that reverse the
# direction of text, and lone surrogates, which cannot be encoded.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    """`text` on one line, with each unsafe character as a JSON escape."""
    return _UNSAFE.sub(_escape, text)


def say(text: str, stream: TextIO | None = None) -> None:
    """Print lines for a person, on stdout by default. Names that a source or a server gave may have control
    characters, which a terminal would follow."""
    print("\n".join(map(escaped, text.split("\n"))), file=stream, flush=True)


def quoted(text: str) -> str:
    """`text` as a JSON string literal on one line. Letters of every script stay readable."""
    return escaped(json.dumps(text, ensure_ascii=False))


def _escape(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1] if match[0] != "\x7f" else "\\u007f"


# An event is one line. The rows of its table follow it and begin with `|` or `+`; a command for a person to copy and
# the lines of its traceback follow and begin with blanks. So no line can be mistaken for another event. Source:
# docs/spec/trace-and-log.md section 6.


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
        origin = f"{record.process} {escaped(record.filename)}:{record.lineno}]"
        lines = [f"{self._start(record)} {origin} {quoted(message) if self._escape else message}"]
        table = record.__dict__.get(TABLE)
        if table is not None:
            for row in map(escaped, str(table).split("\n")):
                line = row if row.startswith(("+", "|")) else f"| {row}"
                lines.append(_STATE.sub(lambda state: self._coloured(state[0], state[0]), line))
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


class JsonFormatter(logging.Formatter):
    """One JSON object per event: time, level, logger, message, file, line, pid, and the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        names = {"E": "ERROR", "W": "WARNING", "I": "INFO" if record.levelno >= logging.INFO else "VERBOSE"}
        event: dict[str, object] = {
            "time": f"{when:%Y-%m-%dT%H:%M:%S.%fZ}",
            "level": names[_letter(record.levelno)],
            "logger": record.name,
            "message": record.getMessage(),
            "file": record.filename,
            "line": record.lineno,
            "pid": record.process,
        }
        for name, value in record.__dict__.items():
            if name not in _OWN and value is not None:
                is_scalar = isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value))
                event.setdefault(name, value if is_scalar else str(value))
        if trace := _traceback(self, record):
            event["traceback"] = trace
        for name, value in event.items():
            if isinstance(value, str):  # few readers of JSON take lone surrogates for characters
                event[name] = value.encode("utf-8", "backslashreplace").decode()
        return json.dumps(event)


def _letter(level: int) -> str:
    if level >= logging.ERROR:
        return "E"
    return "W" if level >= logging.WARNING else "I"


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info and record.exc_info[0] is not None:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts)


# A thread writes the lines, so that nothing that serves waits for them. Lines for which the queue has no room are
# dropped and counted, by each process.


_MOST_WAITING = 1000
# Each time that the thread runs takes the interpreter's lock: it writes the lines of this time together.
_GATHER_S = 0.05
# Writes to a pipe are not torn by those of other processes up to this size; those to the end of a file never are.
_PIPE_WRITE = select.PIPE_BUF
_FILE_WRITE = 1 << 16
FLUSH_S = 1.0
"""How long the end of a process, or the reason for it, waits for its lines to be written."""

_dropped = 0


def lines_dropped() -> dict[str, int]:
    """The lines that this process has dropped, or could not write, since its start, by its number."""
    return {str(os.getpid()): _dropped}


def _count(lines: int) -> None:
    global _dropped
    _dropped += lines


class LineHandler(QueueHandler):
    """Formats an event where it is logged; a thread passes the lines to `write`, several up to `write_size` bytes.

    The thread starts at the first event, in each process anew: of the lines that wait at a fork the parent writes all,
    and the child none.
    """

    queue: SimpleQueue[bytes | threading.Event | None]

    def __init__(self, write: Callable[[bytes], None], *, write_size: int = _PIPE_WRITE) -> None:
        """`write` runs on the thread. It may block, and may raise OSError or ValueError."""
        super().__init__(SimpleQueue())
        self.write = write
        self.encoding = "utf-8"
        self._write_size = write_size
        self._begin()
        _handlers.add(self)

    def _begin(self) -> None:
        self.queue = SimpleQueue()
        self._hurry = threading.Event()
        # Each is changed by one side only: under the lock of the handler, and on the thread.
        self._queued = self._dropped = 0
        self._written = self._reported = 0
        self._writing_since: float | None = None
        self._thread: threading.Thread | None = None

    def prepare(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(self.encoding, "backslashreplace")

    def enqueue(self, line: bytes) -> None:  # type: ignore[override]
        """Have the thread write `line`. Does not block."""
        waiting = self._queued - self._written
        if waiting >= _MOST_WAITING:
            self._dropped += 1
            _count(1)
            return
        self._queued += 1
        self.queue.put(line)
        if waiting > _MOST_WAITING // 2:
            self._hurry.set()
        if self._thread is None:
            self._start()

    def flush(self, within_s: float = FLUSH_S) -> None:
        """Wait until the lines so far are written, but no longer than `within_s`, and not at all if nothing could be
        written for that long."""
        if self._thread is None and not self.queue.empty():  # it was ended while a line was logged
            self._start()
        if self._thread is not None:
            written = threading.Event()
            self.queue.put(written)
            self._hurry.set()
            written.wait(self._patience(within_s))

    def close(self) -> None:
        self.end_thread()
        super().close()

    def end_thread(self) -> bool:
        """End the thread after the lines so far; the next line starts another one. Waits as `flush` does. Returns
        whether it has ended."""
        with self.lock:  # type: ignore[union-attr]
            thread = self._thread
            if thread is None:
                return True
            self.queue.put(None)
            self._hurry.set()
            thread.join(self._patience(FLUSH_S))
            return not thread.is_alive()

    def failed(self, error: OSError | ValueError) -> None:
        """Called on the thread when lines could not be written."""

    def has_dropped(self, count: int) -> None:
        """Called on the thread when there is room again after `count` lines were dropped."""

    def _patience(self, within_s: float) -> float:
        since = self._writing_since
        return max(0.0, within_s if since is None else since + within_s - time.monotonic())

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="trident-log", daemon=True)
        # A signal that the kernel gave to this thread would not wake the main thread, or would pass by its mask.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter ends, or the system has no thread: the next line tries again
            self._thread = None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _run(self) -> None:
        while True:
            items = [self.queue.get()]
            self._hurry.wait(_GATHER_S)
            self._hurry.clear()
            with contextlib.suppress(Empty):
                while True:
                    items.append(self.queue.get_nowait())
            lines: list[bytes] = []
            for item in items:
                if isinstance(item, bytes):
                    lines.append(item)
                elif item is not None:
                    self._write_lines(lines)
                    lines = []
                    item.set()
            self._write_lines(lines)
            dropped = self._dropped - self._reported
            if dropped:
                self._reported += dropped
                self.has_dropped(dropped)
            if None in items and self.queue.empty():
                self._thread = None
                return

    def _write_lines(self, lines: list[bytes]) -> None:
        while lines:
            count, size = 1, len(lines[0])
            while count < len(lines) and size + len(lines[count]) <= self._write_size:
                size += len(lines[count])
                count += 1
            self._writing_since = time.monotonic()
            try:
                self.write(b"".join(lines[:count]))
            except (OSError, ValueError) as error:  # a closed pipe, a full disk; a closed stream
                _count(count)
                self.failed(error)
            self._writing_since = None
            self._written += count
            lines = lines[count:]


_handlers: WeakSet[LineHandler] = WeakSet()


def _before_fork() -> None:
    """End the threads that can end: a fork is safest in a process that has one."""
    for handler in list(_handlers):
        handler.end_thread()


def _after_fork() -> None:
    global _dropped
    _dropped = 0
    for handler in list(_handlers):
        handler._begin()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


_ROOT_LOGGER = "trident"
_server_log = logging.getLogger("trident.server")
_LOWEST_LEVEL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLevels:
    """The settings that can be changed while the server runs.

    `verbose` is the highest verbose level shown, 0 for none. `format` is default, ISO8601 or json. `access` is the
    value of --log-access, `timing` that of --response-timing, and `histograms` that of histogram_latencies in
    --metrics-config.
    """

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
_stdout: TextIO | None = None
_stderr: TextIO | None = None


def log_options() -> LogOptions:
    return _in_force


def log_levels() -> LogLevels:
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
    out, err = out or stdout(), err or stderr()
    unopened = None
    sinks: list[_Sink] = []
    loud = _StreamSink(err)
    if options.file:
        try:
            sinks = [_FileSink(options.file), loud]
        except ConfigInvalid as error:
            unopened = error
    if sinks:
        # Who starts a server looks at stderr, and must see there why it ends.
        loud.setLevel(logging.CRITICAL)
    else:
        quiet = _StreamSink(out)
        quiet.addFilter(lambda record: record.levelno < logging.WARNING)
        loud.setLevel(logging.WARNING)
        sinks = [quiet, loud]
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
        if options.format == "json":
            sink.setFormatter(JsonFormatter())
        else:
            has_colour = options.colour and isinstance(sink, _StreamSink) and sink.is_terminal
            sink.setFormatter(
                TextFormatter(iso8601=options.format == "ISO8601", escape=options.escape, colour=has_colour)
            )
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
    global _stdout, _stderr
    moves = ((stdout(), out), (stderr(), err))
    _stdout, _stderr = out, err
    for sink in _sinks():
        for before, now in moves:
            if isinstance(sink, _StreamSink) and sink.stream is before:
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
        if isinstance(sink, _FileSink):
            sink.is_asked = True


def reopen_log_if_asked() -> None:
    """Open the log file again also in a process that has nothing to log. Any thread."""
    for sink in _sinks():
        if isinstance(sink, _FileSink) and sink.is_asked:
            with sink.lock:  # type: ignore[union-attr]
                sink.enqueue(b"")


def _sinks() -> list[_Sink]:
    return [each for each in logging.getLogger().handlers if isinstance(each, _Sink)]


class _Sink(LineHandler):
    """The log file, or a stream of the console. Failures of the log itself are reported on stderr, each once."""

    def __init__(self, write: Callable[[bytes], None], write_size: int) -> None:
        super().__init__(write, write_size=write_size)
        self._reported_failures: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if record.levelno >= logging.CRITICAL:  # the process may be about to end
            self.flush()

    def failed(self, error: OSError | ValueError) -> None:
        self._report(f"the log cannot be written: {error}; its events are lost")

    def has_dropped(self, count: int) -> None:
        text = "%d log lines were dropped because the reader of the log did not keep up"
        record = _server_log.makeRecord(_server_log.name, logging.WARNING, __file__, 0, text, (count,), None)
        with contextlib.suppress(OSError, ValueError):
            self.write(self.prepare(record))

    def _report(self, text: str) -> None:
        if text not in self._reported_failures:
            self._reported_failures.add(text)
            with contextlib.suppress(OSError, ValueError):
                print_line(text, stderr())


class _StreamSink(_Sink):
    def __init__(self, stream: TextIO) -> None:
        super().__init__(lambda lines: write_stream(self.stream, lines), _PIPE_WRITE)
        self.move_to(stream)

    def move_to(self, stream: TextIO) -> None:
        """Write to `stream` from now on. When nothing waits to be written, as right after a fork."""
        self.stream = stream
        self.is_terminal = stream.isatty()
        self.encoding = stream.encoding or "utf-8"


class _FileSink(_Sink):
    """The file at `path`. Raises ConfigInvalid if it cannot be opened.

    Several processes append to it. Each write of whole lines is one to the end of the file, so that no line is torn by
    another. Any thread, or a signal handler, may set `is_asked`: the next write opens the file again.
    """

    def __init__(self, path: str) -> None:
        super().__init__(self._append, _FILE_WRITE)
        self._path = path
        self.is_asked = False
        self._is_torn = False
        self._descriptor = -1
        try:
            self._descriptor = _open(path)
        except OSError as error:
            raise ConfigInvalid(f"cannot open the log file {path}: {error.strerror}") from error

    def close(self) -> None:
        if self.end_thread() and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        super().close()

    def _append(self, lines: bytes) -> None:
        """Raises OSError; a part of the lines may be in the file then, and the next write begins on a line of its own.

        Without lines only a file that was moved away is left.
        """
        # A file that was removed takes events with it: a link count of 0 says so in less than a microsecond.
        if self.is_asked or not os.fstat(self._descriptor).st_nlink:
            self.is_asked = False
            try:
                opened = _open(self._path)
            except OSError as error:  # the events go on into the file that is open
                text = f"the log file cannot be opened again: {error}; the log goes on in the file from before"
                self._report(text)
            else:
                os.close(self._descriptor)
                self._descriptor = opened
                self._is_torn = False
        left = memoryview(b"\n" + lines if self._is_torn and lines else lines)
        while left:
            size = os.write(self._descriptor, left)
            left = left[size:]
            self._is_torn = bool(left)


def _open(path: str) -> int:
    # A named pipe without a reader is an error, not something to wait for.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


def _is_switched_on(record: logging.LogRecord) -> bool:
    """The switches log-info, log-warning and log-error. Verbose messages depend on their level alone, and the reason
    for which the server ends is always shown."""
    if record.levelno >= logging.ERROR:
        return _in_force.error or record.levelno >= logging.CRITICAL
    if record.levelno >= logging.WARNING:
        return _in_force.warning
    return _in_force.info or record.levelno < logging.INFO


# ONNX Runtime's lines, for example, look like this; terminals get them in colours:
#
#     2026-11-23 09:02:28.207427347 [I:onnxruntime:simple, inference_session.cc:777 TraceSessionOptions] Session
# Options


_COLOUR_CODES = re.compile(r"\x1b\[[0-9;]*m")
# Its time is local, to the nanosecond; the log has microseconds.
_KNOWN = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6})\d* \[(?P<level>[VIWEF]):(?P<library>\w+):(?P<id>[^,]*), "
    r"(?P<file>[^\]:]+):(?P<line>\d+)[^\]]*\] (?P<text>.*)",
    re.DOTALL,
)
_LEVELS = {"V": logging.DEBUG, "I": logging.DEBUG, "W": logging.WARNING, "E": logging.ERROR, "F": logging.ERROR}
_OTHER = "trident.native"


def log_native_line(line: str, pid: int, level_of_others: int = logging.WARNING) -> None:
    """Log a line that process `pid` wrote: at `level_of_others`, INFO for stdout, if it is in no known form."""
    text = _COLOUR_CODES.sub("", line).rstrip()
    if not text:
        return
    found = _KNOWN.match(text)
    logger = logging.getLogger(f"trident.{found['library']}" if found else _OTHER)
    level = _LEVELS[found["level"]] if found else level_of_others
    if not logger.isEnabledFor(level):
        return
    if found is None:
        record = logger.makeRecord(
            logger.name, level, "stderr" if level > logging.INFO else "stdout", 0, "%s", (text,), None
        )
    else:
        file, number = PurePath(found["file"]).name, int(found["line"])
        extra = {"session": found["id"]} if found["id"] else None
        record = logger.makeRecord(logger.name, level, file, number, "%s", (found["text"],), None, extra=extra)
        with contextlib.suppress(ValueError):
            record.created = datetime.fromisoformat(found["time"]).timestamp()
    record.process = pid
    logger.handle(record)


_WIDTH = 80


def stdout() -> TextIO:
    """The stdout that this program was started with, though descriptor 1 may be another file by now."""
    return _stdout or sys.stdout


def stderr() -> TextIO:
    """The stderr that this program was started with, though descriptor 2 may be another file by now."""
    return _stderr or sys.stderr


def width() -> int:
    """The columns of the terminal that shows stdout; 80 if it is none."""
    try:
        return os.get_terminal_size(stdout().fileno()).columns or _WIDTH
    except (OSError, ValueError, AttributeError):
        return _WIDTH


def print_line(text: str, stream: TextIO) -> None:
    """Write `text` and its line end in one write. Any thread. Raises OSError.

    `print` writes the line end separately. With PYTHONUNBUFFERED, which images commonly set, another process or thread
    writes to the same stream in between.
    """
    stream.flush()
    write_stream(stream, f"{text}\n".encode(stream.encoding or "utf-8", "backslashreplace"))


def write_stream(stream: TextIO, content: bytes) -> None:
    """Write all of `content`, which is in the encoding of `stream`, also to a pipe that does not block its writers.

    A file of the system is written past the buffer of the stream: a thread that waits for the reader must not have the
    lock of the buffer, which the end of the process needs. Raises OSError.
    """
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):  # memory of this program
        stream.write(content.decode(stream.encoding or "utf-8"))
        stream.flush()
        return
    left = memoryview(content)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()
