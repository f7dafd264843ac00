from __future__ import annotations

import io
import json
import logging
import os
from pathlib import Path

import pytest

from trident.core.errors import ConfigInvalid
from trident.core.observability.log import (
    LogLevels,
    LogOptions,
    change_log,
    close_log,
    configure_logging,
    flush_log,
    lines_dropped,
    log_options,
    log_table,
    verbose_level,
)

log = logging.getLogger("trident.test")


def shown(options: LogOptions) -> tuple[list[str], list[str]]:
    """The messages on each stream after one message of each level."""
    out, err = io.StringIO(), io.StringIO()
    configure_logging(options, out=out, err=err)
    for level in (3, 2, 1):
        log.log(verbose_level(level), "verbose %d", level)
    log.info("info")
    log.warning("warning")
    log.error("error")
    return [[line.split('"')[1] for line in each.getvalue().splitlines()] for each in (out, err)]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("options", "out", "err"),
    [
        (LogOptions(), ["info"], ["warning", "error"]),
        (LogOptions(verbose=1), ["verbose 1", "info"], ["warning", "error"]),
        (LogOptions(verbose=2), ["verbose 2", "verbose 1", "info"], ["warning", "error"]),
        (LogOptions(verbose=99), ["verbose 3", "verbose 2", "verbose 1", "info"], ["warning", "error"]),
        (LogOptions(verbose=1, info=False), ["verbose 1"], ["warning", "error"]),
        (LogOptions(info=False), [], ["warning", "error"]),
        (LogOptions(warning=False), ["info"], ["error"]),
        (LogOptions(error=False), ["info"], ["warning"]),
        (LogOptions(info=False, warning=False, error=False), [], []),
    ],
)
def test_each_message_goes_to_its_stream(options: LogOptions, out: list[str], err: list[str]) -> None:
    assert tuple(shown(options)) == (out, err)


def test_debug_is_the_first_verbose_level() -> None:
    assert verbose_level(1) == logging.DEBUG
    assert verbose_level(2) < verbose_level(1)
    assert verbose_level(1000) > logging.NOTSET


def test_a_log_file_gets_all_messages_and_is_appended_to(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("before\n")
    out, err = io.StringIO(), io.StringIO()
    configure_logging(LogOptions(file=str(file)), out=out, err=err)
    log.info("information")
    log.error("Größe \udc80")
    flush_log()
    lines = file.read_text("utf-8").splitlines()
    assert lines[0] == "before"
    assert [line.split("] ")[1] for line in lines[1:]] == ['"information"', '"Größe \\udc80"']
    assert (out.getvalue(), err.getvalue()) == ("", "")


def test_a_log_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"cannot open the log file .*missing/log: No such file or directory"):
        configure_logging(LogOptions(file=str(tmp_path / "missing" / "log")))


def test_a_second_call_replaces_the_first(tmp_path: Path) -> None:
    first = tmp_path / "first"
    configure_logging(LogOptions(file=str(first)))
    out = io.StringIO()
    configure_logging(LogOptions(format="json"), out=out, err=io.StringIO())
    log.info("one", extra={"model": "digits"})
    assert first.read_text() == ""
    event = json.loads(out.getvalue())
    assert (event["message"], event["model"], event["logger"]) == ("one", "digits", "trident.test")


def test_warnings_of_other_packages_are_logged() -> None:
    out, err = io.StringIO(), io.StringIO()
    configure_logging(LogOptions(verbose=9), out=out, err=err)
    other = logging.getLogger("somebody.else")
    other.info("chatter")
    other.warning("trouble")
    assert out.getvalue() == ""
    assert "trouble" in err.getvalue()


def test_a_table_is_one_event_at_the_line_of_its_caller() -> None:
    out = io.StringIO()
    configure_logging(LogOptions(), out=out, err=io.StringIO())
    log_table(log, "models", "+---+\n+---+")
    head, *rows = out.getvalue().splitlines()
    assert "test_logging.py:" in head
    assert head.endswith('"models"')
    assert rows == ["+---+", "+---+"]


def test_the_iso_format_and_unquoted_messages_can_be_chosen() -> None:
    out = io.StringIO()
    configure_logging(LogOptions(format="ISO8601", escape=False), out=out, err=io.StringIO())
    log.info("plain")
    assert out.getvalue().endswith("] plain\n")
    assert out.getvalue()[10:11] == "T"


def test_a_console_of_another_encoding_loses_no_event() -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii") as console:
        configure_logging(LogOptions(), out=console, err=io.StringIO())
        log.info("Größe")
        assert raw.getvalue().endswith(b'"Gr\\xf6\\xdfe"\n')
        close_log()


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_lost_events_are_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    err = io.StringIO()
    configure_logging(LogOptions(), out=Broken(), err=err)
    log = logging.getLogger("trident.test")
    for number in range(3):
        log.info("event %d", number)
    log.warning("still heard")
    assert capsys.readouterr().err == "the log cannot be written: [Errno 32] Broken pipe; its events are lost\n"
    assert err.getvalue().endswith('"still heard"\n')


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_lines_that_the_disk_does_not_take_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    before = lines_dropped()
    configure_logging(LogOptions(file="/dev/full"), err=io.StringIO())
    log.info("one")
    flush_log()
    told = "the log cannot be written: [Errno 28] No space left on device; its events are lost\n"
    assert (capsys.readouterr().err, lines_dropped() - before) == (told, 1)


def test_a_malformed_message_is_reported_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    before = list(logging.getLogger().handlers)
    configure_logging(LogOptions(), out=io.StringIO(), err=io.StringIO())
    (quiet, _) = [each for each in logging.getLogger().handlers if each not in before]
    quiet.handle(logging.LogRecord("trident.test", logging.INFO, "test.py", 1, "%d", ("one",), None))
    assert "TypeError" in capsys.readouterr().err


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
