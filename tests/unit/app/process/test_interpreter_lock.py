from __future__ import annotations

import sys

from trident.app.process.heap import share_interpreter_lock


def test_threads_take_turns_in_steps_of_half_a_millisecond() -> None:
    before = sys.getswitchinterval()
    try:
        share_interpreter_lock()
        assert round(sys.getswitchinterval(), 6) == 0.0005
    finally:
        sys.setswitchinterval(before)
