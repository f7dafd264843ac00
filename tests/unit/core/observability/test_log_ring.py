"""The last lines of the log, in memory that processes share."""

from __future__ import annotations

import os

from trident.core.observability.log_ring import _SIZE, LogRing


def test_the_oldest_lines_make_room_and_none_is_torn() -> None:
    ring = LogRing()
    line = b"x" * 999
    for number in range(_SIZE // 500):
        ring.write(b"%d %s\n" % (number, line))
    _, lines = ring.read(0)
    assert len(lines) > 900
    assert {len(each.partition(b" ")[2]) for each in lines} == {999}
    assert int(lines[-1].split()[0]) - int(lines[0].split()[0]) == len(lines) - 1


def test_a_child_writes_into_the_same_ring() -> None:
    ring = LogRing()
    if not (child := os.fork()):
        ring.write(b"of the child\n")
        os._exit(0)
    os.waitpid(child, 0)
    assert ring.read(0)[1] == [b"of the child"]
