from __future__ import annotations

import os

import pytest

from trident.app.supervisor.start import FailureNote


def test_a_note_begins_empty() -> None:
    assert FailureNote().read() == ""


@pytest.mark.parametrize("reason", ["Internal - no models", "kaputt: ü", "x" * (1 << 17)])
def test_a_child_leaves_the_reason_for_its_parent(reason: str) -> None:
    note = FailureNote()
    note.write("an earlier and longer reason that the next one replaces")
    child = os.fork()
    if not child:
        note.write(reason)
        os._exit(0)
    os.waitpid(child, 0)
    assert note.read() == reason[: (1 << 16) - 1]
