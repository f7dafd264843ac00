from __future__ import annotations

import os

from trident.core.interprocess.restarts import SharedNote


def test_a_child_leaves_bytes_for_its_parent() -> None:
    note = SharedNote(5)
    assert note.read() == b""
    note.write(b"first")
    child = os.fork()
    if not child:
        note.write(b"\0b")
        os._exit(0)
    os.waitpid(child, 0)
    assert note.read() == b"\0b"


def test_what_does_not_fit_is_cut() -> None:
    note = SharedNote(3)
    note.write(b"12345")
    assert note.read() == b"123"
