"""The log: events, formats, the file, the console, lines of native libraries, and the writer thread."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.waiting import until
from trident.core.observability.access_log import log_access
from trident.core.observability.log import (
    _MOST_WAITING,
    JsonFormatter,
    LineHandler,
    LogLevels,
    LogOptions,
    TextFormatter,
    change_log,
    close_log,
    configure_logging,
    escaped,
    flush_log,
    lines_dropped,
    log_native_line,
    log_options,
    print_line,
    quoted,
    verbose_level,
    write_stream,
)
from trident.core.observability.log_ring import _SIZE, LogRing

log = logging.getLogger("trident.test")


def dropped() -> int:
    return lines_dropped()[str(os.getpid())]


def test_a_console_of_another_encoding_loses_no_event() -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii") as console:
        configure_logging(LogOptions(), out=console, err=io.StringIO())
        log.info("Größe")
        flush_log()
        assert raw.getvalue().endswith(b'"Gr\\xf6\\xdfe"\n')
        close_log()


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_lost_events_are_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    err = io.StringIO()
    configure_logging(LogOptions(), out=Broken(), err=err)
    for number in range(3):
        log.info("event %d", number)
    log.warning("still heard")
    flush_log()
    assert capsys.readouterr().err == "the log cannot be written: [Errno 32] Broken pipe; its events are lost\n"
    assert err.getvalue().endswith('"still heard"\n')


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_lines_lost_on_a_full_disk_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    before = dropped()
    configure_logging(LogOptions(file="/dev/full"), err=io.StringIO())
    log.info("one")
    flush_log()
    told = "the log cannot be written: [Errno 28] No space left on device; its events are lost\n"
    assert (capsys.readouterr().err, dropped() - before) == (told, 1)


def test_the_log_changes_while_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "log"
    configure_logging(LogOptions(file=str(file), info=False))
    log.info("before")
    change_log(LogLevels(verbose=1, warning=False, format="json"))
    for level in (logging.INFO, logging.WARNING, verbose_level(1), verbose_level(2)):
        log.log(level, "at %d", level)
    close_log()
    assert [json.loads(line)["message"] for line in file.read_text().splitlines()] == ["at 20", "at 10"]
    assert log_options() == LogOptions(file=str(file), verbose=1, warning=False, format="json")


NOON = 1735732800.123456  # 2025-01-01 12:00:00.123456 UTC
FORGED = 'I0101 12:00:00.000000 1 server.py:1] "all is well"'
ATTACKS = [f"x\n{FORGED}", f"x\r\n{FORGED}", f"x\r{FORGED}", f'x"\n{FORGED}', f"x\u2028{FORGED}", f"x\x85{FORGED}"]
EVENT = re.compile(r"[IWE]\d{4} |\d{4}-\d\d-\d\dT")


def record(message: str, *args: object, level: int = logging.INFO, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("trident.test", level, "/srv/app/server.py", 88, message, args, more.pop("exc_info", None))
    made.created = NOON
    made.__dict__.update(more)
    return made


def failure(text: str) -> Any:
    try:
        raise ValueError(text)
    except ValueError:
        return sys.exc_info()


@pytest.mark.parametrize("attack", ATTACKS)
def test_text_in_an_event_cannot_forge_another(attack: str) -> None:
    for formatter in (TextFormatter(), TextFormatter(iso8601=True), JsonFormatter()):
        for event in (record(attack), record("model '%s' is not found", attack)):
            assert len(formatter.format(event).splitlines()) == 1
    event = record("it broke", level=logging.ERROR, exc_info=failure(attack), table=attack)
    first, *others = TextFormatter().format(event).splitlines()
    assert first.endswith('"it broke"')
    assert any("Traceback" in line for line in others)
    assert all(line.startswith(("    ", "|", "+")) for line in others)
    assert not any(EVENT.match(line) for line in others)
    text = JsonFormatter().format(event)
    assert len(text.splitlines()) == 1
    assert json.loads(text)["traceback"].startswith("Traceback")
    assert json.loads(text)["traceback"].endswith(f"ValueError: {attack}")


def test_json_event_has_standard_and_extra_fields() -> None:
    event = json.loads(
        JsonFormatter().format(record("it is %s", "so", model="digits", code="Internal", hint=None, count=3))
    )
    assert event == {
        "time": "2025-01-01T12:00:00.123456Z",
        "level": "INFO",
        "logger": "trident.test",
        "message": "it is so",
        "file": "server.py",
        "line": 88,
        "pid": os.getpid(),
        "model": "digits",
        "code": "Internal",
        "count": 3,
    }


def test_extra_fields_of_any_type_are_logged_and_replace_no_standard_field() -> None:
    event = json.loads(JsonFormatter().format(record("true", level=logging.ERROR, time="never", line=0)))
    assert (event["time"], event["line"]) == ("2025-01-01T12:00:00.123456Z", 88)
    event = orjson.loads(
        JsonFormatter().format(record("\ud800", bad=float("nan"), ratio=0.5, path=os.PathLike, text="\udc80"))
    )
    assert (event["bad"], event["ratio"]) == ("nan", 0.5)
    assert (event["message"], event["text"]) == ("\\ud800", "\\udc80")
    assert event["path"] == str(os.PathLike)
    text = TextFormatter().format(record("here", stack_info="Stack (most recent call last):\n  File x"))
    assert text.split("\n")[1:] == ["    Stack (most recent call last):", "      File x"]
    assert quoted("Größe 模型") == '"Größe 模型"'
    assert escaped('"Größe"\t') == '"Größe"\\t'


UNSAFE = ["\n", "\r", "\x00", "\x1b[2J", "\x7f", "\x85", "\x9b1A", "\u2028", "\u2029", "\u202e", "\u2066", "\udc80"]


@pytest.mark.parametrize("text", UNSAFE)
def test_an_escaped_text_cannot_end_a_line_or_control_a_terminal(text: str) -> None:
    for safe in (escaped(f"a{text}b"), quoted(f"a{text}b")):
        assert safe.isprintable()
        assert safe.encode()


class Writes(io.RawIOBase):
    """A file that records the bytes of each system call."""

    def __init__(self) -> None:
        self.each: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.each.append(bytes(data))
        return len(data)


# As Python opens the standard streams: with PYTHONUNBUFFERED without a buffer, and on a terminal by lines.
@pytest.mark.parametrize("how", [{"write_through": True}, {"line_buffering": True}, {}])
def test_a_line_and_its_end_are_one_write(how: dict[str, bool]) -> None:
    file = Writes()
    buffer = file if how.get("write_through") else io.BufferedWriter(file)
    stream = io.TextIOWrapper(buffer, encoding="utf-8", **how)  # type: ignore[arg-type]
    print_line("one\ntwo ä", stream)
    assert file.each == ["one\ntwo ä\n".encode()]


LINE = "2026-11-23 09:02:28.207427347 [%s:onnxruntime:simple, graph.cc:777 Resolve] some text [1, 2]"
PID = 4711


@pytest.fixture
def native_log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "trident")
    return caplog


@pytest.mark.parametrize(
    ("letter", "level"),
    [("V", logging.DEBUG), ("I", logging.DEBUG), ("W", logging.WARNING), ("E", logging.ERROR), ("F", logging.ERROR)],
)
def test_native_log_line_keeps_level_time_and_location(
    native_log: pytest.LogCaptureFixture, letter: str, level: int
) -> None:
    log_native_line(LINE % letter, PID)
    (record,) = native_log.records
    assert (record.name, record.levelno, record.getMessage()) == ("trident.onnxruntime", level, "some text [1, 2]")
    assert (record.filename, record.lineno, record.process) == ("graph.cc", 777, PID)
    assert record.__dict__["session"] == "simple"
    assert record.created == datetime(2026, 11, 23, 9, 2, 28, 207427).timestamp()


@pytest.mark.parametrize("line", ["free(): invalid pointer", "2026-11-23 [W:x] y", "%s %d", LINE[:40]])
def test_unknown_native_line_is_logged_as_warning(native_log: pytest.LogCaptureFixture, line: str) -> None:
    log_native_line(line, PID)
    (record,) = native_log.records
    assert (record.name, record.levelno, record.getMessage()) == ("trident.native", logging.WARNING, line)
    assert record.process == PID


def test_empty_and_hidden_native_lines_are_not_logged(native_log: pytest.LogCaptureFixture) -> None:
    native_log.set_level(logging.INFO, "trident")
    for line in ("", "  \n", LINE % "V"):
        log_native_line(line, PID)
    assert native_log.records == []


def test_lines_are_written_in_order_and_small_ones_together() -> None:
    writes: list[bytes] = []
    handler = LineHandler(writes.append)
    lines = [f"{number:020}" for number in range(1000)]
    for line in lines:
        handler.handle(logging.makeLogRecord({"msg": line}))
    assert handler.end_thread()
    assert b"".join(writes).decode().split() == lines
    assert len(writes) < len(lines)
    assert all(len(write) <= 4096 and write.endswith(b"\n") for write in writes)


def test_log_lines_behind_a_stalled_reader_are_dropped_and_counted() -> None:
    """Nothing that logs waits, and neither does the end of the process for longer than its limit."""
    stalled, may_write, written, counts = threading.Event(), threading.Event(), [], []

    def write(lines: bytes) -> None:
        stalled.set()
        assert may_write.wait(30)
        written.extend(lines.split())

    handler = LineHandler(write)
    handler.has_dropped = counts.append  # type: ignore[method-assign]
    before = dropped()
    handler.handle(logging.makeLogRecord({"msg": "first"}))
    assert stalled.wait(30)
    for number in range(1, _MOST_WAITING + 7):
        handler.handle(logging.makeLogRecord({"msg": str(number)}))
    handler.flush(0.0)
    assert dropped() - before == 7
    may_write.set()
    assert until(lambda: handler.end_thread())
    assert (written[0], written[-1], len(written)) == (b"first", b"%d" % (_MOST_WAITING - 1), _MOST_WAITING)
    assert counts == [7]
    handler.handle(logging.makeLogRecord({"msg": "later"}))  # on another thread, which does not report them again
    assert handler.end_thread()
    assert (written[-1], counts) == (b"later", [7])


def test_a_child_writes_its_own_lines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the thread of the parent cannot end before the fork, because a reader stalls."""
    monkeypatch.setattr("trident.core.observability.log.FLUSH_S", 0.05)
    reader, writer = os.pipe()
    stalled, may_write, parent = threading.Event(), threading.Event(), os.getpid()

    def write(lines: bytes) -> None:
        stalled.set()
        if os.getpid() == parent:
            assert may_write.wait(30)
        os.write(writer, lines)

    handler = LineHandler(write)
    handler.handle(logging.makeLogRecord({"msg": "of the parent"}))
    assert stalled.wait(30)
    if not (child := os.fork()):
        handler.handle(logging.makeLogRecord({"msg": "of the child"}))
        handler.flush(30)
        os._exit(0)
    os.waitpid(child, 0)
    may_write.set()
    assert until(lambda: handler.end_thread())
    os.close(writer)
    with open(reader) as file:
        assert file.read().splitlines() == ["of the child", "of the parent"]


def test_access_log_shortens_long_values_and_omits_unknown_ones(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_access("::1", "POST", "/" + "x" * 2000, 200, 0, {"sent_bytes": 2}, request_id="a b" * 1000)
    (found,) = caplog.records
    assert (len(found.__dict__["path"]), len(found.__dict__["request_id"])) == (1024, 1024)
    assert found.getMessage().startswith('::1 "POST /xxx')
    assert ' sent_bytes=2 request_id="a ba b' in found.getMessage()
    assert not {"model", "version", "received_bytes"} & set(found.__dict__)


def test_nonblocking_pipe_gets_everything() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    content = os.urandom(1 << 20)
    with os.fdopen(writer, "w") as stream, open(reader, "rb") as file:
        thread = threading.Thread(target=write_stream, args=(stream, content))
        thread.start()
        assert file.read(len(content)) == content
        thread.join()


def test_log_ring_overwrites_the_oldest_whole_lines() -> None:
    ring = LogRing()
    line = b"x" * 999
    for number in range(_SIZE // 500):
        ring.write(b"%d %s\n" % (number, line))
    _, lines = ring.read(0)
    assert len(lines) > 900
    assert {len(each.partition(b" ")[2]) for each in lines} == {999}
    assert int(lines[-1].split()[0]) - int(lines[0].split()[0]) == len(lines) - 1


def test_log_ring_read_starts_at_the_next_whole_line() -> None:
    ring = LogRing()
    ring.write(b"first\nsecond\n")
    assert [ring.read(after)[1] for after in (0, 2, 6, 7, 13, 99)] == [
        [b"first", b"second"],
        [b"second"],
        [b"second"],
        [],
        [],
        [b"first", b"second"],
    ]


def test_log_ring_is_shared_with_a_forked_child() -> None:
    ring = LogRing()
    if not (child := os.fork()):
        ring.write(b"of the child\n")
        os._exit(0)
    os.waitpid(child, 0)
    assert ring.read(0)[1] == [b"of the child"]
