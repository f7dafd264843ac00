from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from trident.core.errors import ConfigInvalid
from trident.core.observability.log import LogFile


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def sink(tmp_path: Path, told: list[str]) -> Iterator[LogFile]:
    made = LogFile(str(tmp_path / "log"), told.append)
    yield made
    made.close()


def test_a_moved_file_is_left_at_the_next_write_also_of_nothing(sink: LogFile, tmp_path: Path) -> None:
    sink.write(b"one\n")
    (tmp_path / "log").rename(tmp_path / "log.1")
    sink.write(b"two\n")
    sink.ask_to_reopen()
    sink.write(b"three\n")
    (tmp_path / "log").rename(tmp_path / "log.2")
    sink.ask_to_reopen()
    sink.write(b"")
    assert (tmp_path / "log").read_text() == ""
    assert ((tmp_path / "log.1").read_text(), (tmp_path / "log.2").read_text()) == ("one\ntwo\n", "three\n")


def test_a_removed_file_takes_no_event_with_it(sink: LogFile, tmp_path: Path) -> None:
    (tmp_path / "log").unlink()
    sink.write(b"one\n")
    assert (tmp_path / "log").read_text() == "one\n"


def test_the_file_from_before_is_kept_if_there_is_no_other(sink: LogFile, tmp_path: Path, told: list[str]) -> None:
    (tmp_path / "log").rename(tmp_path / "log.1")
    (tmp_path / "log").mkdir()
    sink.ask_to_reopen()
    sink.write(b"one\n")
    sink.write(b"two\n")
    assert (tmp_path / "log.1").read_text() == "one\ntwo\n"
    assert len(told) == 1
    assert "Is a directory" in told[0]
    assert "the log goes on in the file from before" in told[0]


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, told: list[str]) -> None:
    with pytest.raises(ConfigInvalid, match=r"cannot open the log file .*missing/log: No such file or directory"):
        LogFile(str(tmp_path / "missing" / "log"), told.append)


def test_a_pipe_without_a_reader_is_not_waited_for(tmp_path: Path, told: list[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigInvalid, match=r"cannot open the log file .*pipe: No such device or address"):
        LogFile(str(tmp_path / "pipe"), told.append)
