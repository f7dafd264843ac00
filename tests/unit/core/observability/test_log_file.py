from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.errors import ConfigInvalid
from core.observability.log_file import LogFile


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def sink(tmp_path: Path, told: list[str]) -> Iterator[LogFile]:
    made = LogFile(str(tmp_path / "log"), told.append)
    yield made
    made.close()


def log(sink: LogFile, text: str) -> None:
    sink.handle(logging.LogRecord("trident", logging.INFO, "", 1, "%s", (text,), None))


def test_events_are_appended_as_utf_8(sink: LogFile, tmp_path: Path) -> None:
    log(sink, "Größe \udc80")
    assert (tmp_path / "log").read_bytes() == "Größe \\udc80\n".encode()


def test_a_moved_file_is_left_at_the_next_event_or_before(sink: LogFile, tmp_path: Path) -> None:
    log(sink, "one")
    (tmp_path / "log").rename(tmp_path / "log.1")
    log(sink, "two")
    sink.ask_to_reopen()
    log(sink, "three")
    (tmp_path / "log").rename(tmp_path / "log.2")
    sink.ask_to_reopen()
    sink.reopen_if_asked()
    assert (tmp_path / "log").read_text() == ""
    assert ((tmp_path / "log.1").read_text(), (tmp_path / "log.2").read_text()) == ("one\ntwo\n", "three\n")


def test_a_removed_file_takes_no_event_with_it(sink: LogFile, tmp_path: Path) -> None:
    (tmp_path / "log").unlink()
    log(sink, "one")
    assert (tmp_path / "log").read_text() == "one\n"


def test_the_file_from_before_is_kept_if_there_is_no_other(sink: LogFile, tmp_path: Path, told: list[str]) -> None:
    (tmp_path / "log").rename(tmp_path / "log.1")
    (tmp_path / "log").mkdir()
    sink.ask_to_reopen()
    log(sink, "one")
    log(sink, "two")
    assert (tmp_path / "log.1").read_text() == "one\ntwo\n"
    assert len(told) == 1
    assert "Is a directory" in told[0]
    assert "the log goes on in the file from before" in told[0]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_events_that_cannot_be_written_are_told(told: list[str]) -> None:
    sink = LogFile("/dev/full", told.append)
    log(sink, "one")
    assert told == ["the log cannot be written: [Errno 28] No space left on device; its events are lost"]
    sink.close()


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, told: list[str]) -> None:
    with pytest.raises(ConfigInvalid, match=r"cannot open the log file .*missing/log: No such file or directory"):
        LogFile(str(tmp_path / "missing" / "log"), told.append)
