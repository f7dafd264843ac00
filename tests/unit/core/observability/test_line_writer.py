from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.project import ROOT
from tests.waiting import until
from trident.core.observability.log import LineWriter, lines_dropped, write_all

LINE = b"x" * 999 + b"\n"


class Output:
    """What a writer writes; it waits while `may_write` is not set, and fails while `error` is."""

    def __init__(self) -> None:
        self.may_write = threading.Event()
        self.may_write.set()
        self.error: OSError | None = None
        self.writes: list[bytes] = []
        self.failures: list[str] = []
        self.dropped: list[int] = []
        self.writer = LineWriter(self._write, self.failures.append, self.dropped.append)

    def _write(self, lines: bytes) -> None:
        self.may_write.wait()
        if self.error is not None:
            raise self.error
        self.writes.append(lines)


@pytest.fixture
def output() -> Iterator[Output]:
    made = Output()
    yield made
    made.may_write.set()
    assert made.writer.close(30)


def test_lines_are_written_in_order_and_small_ones_together(output: Output) -> None:
    lines = [b"%d\n" % number for number in range(1000)]
    for line in lines:
        output.writer.put(line)
    output.writer.flush(30)
    assert b"".join(output.writes) == b"".join(lines)
    assert len(output.writes) < len(lines)
    assert all(len(write) <= 4096 and write.endswith(b"\n") for write in output.writes)


def test_lines_without_room_are_dropped_counted_and_told_once_there_is_room(output: Output) -> None:
    before = lines_dropped()
    output.may_write.clear()
    for _ in range(1000):
        output.writer.put(LINE)
    dropped = lines_dropped() - before
    assert 500 < dropped < 1000
    assert output.dropped == []
    output.may_write.set()
    output.writer.flush(30)
    assert output.dropped == [dropped]
    assert len(b"".join(output.writes)) == (1000 - dropped) * len(LINE)


def test_a_line_that_is_larger_than_the_room_is_written(output: Output) -> None:
    output.writer.put(b"y" * 1_000_000)
    output.writer.flush(30)
    assert [len(write) for write in output.writes] == [1_000_000]


def test_the_end_does_not_wait_for_a_stalled_reader(output: Output) -> None:
    output.may_write.clear()
    output.writer.put(LINE)
    output.writer.flush(0.01)
    assert not output.writer.close(0.01)
    assert output.writes == []


def test_lines_that_cannot_be_written_are_counted_and_the_next_ones_are_tried(output: Output) -> None:
    before = lines_dropped()
    output.error = OSError(28, "No space left on device")
    output.writer.put(LINE)
    output.writer.flush(30)
    output.error = None
    output.writer.put(LINE)
    output.writer.flush(30)
    assert (output.failures, lines_dropped() - before) == (["[Errno 28] No space left on device"], 1)
    assert output.writes == [LINE]


def test_an_ended_writer_begins_again(output: Output) -> None:
    for _ in range(2):
        output.writer.put(LINE)
        assert output.writer.close(30)
    assert output.writes == [LINE, LINE]


def test_a_pipe_that_does_not_block_its_writers_gets_everything() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    content = os.urandom(1 << 20)
    thread = threading.Thread(target=write_all, args=(writer, content))
    thread.start()
    with open(reader, "rb") as file:
        found: Any = file.read(len(content))
    thread.join()
    os.close(writer)
    assert found == content


FORK = """
import os
from trident.core.observability.log import LineWriter, lines_dropped
writer = LineWriter(lambda lines: os.write(1, lines), print, print)
writer.put(b"before\\n")
if not os.fork():
    writer.put(b"child\\n")
    writer.close()
    os._exit(0)
os.wait()
writer.put(b"parent\\n")
writer.close()
"""


def test_each_process_writes_its_own_lines() -> None:
    command = [sys.executable, "-W", "error", "-c", FORK]
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert (run.stdout, run.stderr) == (b"before\nchild\nparent\n", b"")


def test_the_count_is_that_of_all_processes(output: Output) -> None:
    before = lines_dropped()
    output.error = OSError(5, "Input/output error")
    pid = os.fork()
    if not pid:
        output.writer.put(LINE)
        output.writer.close(30)
        os._exit(0)
    os.waitpid(pid, 0)
    assert until(lambda: lines_dropped() - before) == 1
