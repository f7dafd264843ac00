"""Two calls at the same moment: the one runs as a whole between any two operations of the other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def interrupted(
    first: Callable[[], object], second: Callable[[], object], step: int, is_free: Callable[[], bool]
) -> bool:
    """Run `first`, and `second` before the core's operation of that number among those before which `is_free`; at the
    end if there is none, which returns False. In a compiled core there are none.
    """
    left = step

    def trace(frame: Any, event: str, arg: object) -> Any:
        nonlocal left
        if not frame.f_globals["__name__"].startswith("trident.core."):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and left >= 0 and is_free():
            left -= 1
            if left < 0:
                second()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        first()
    finally:
        sys.settrace(before)
    if left >= 0:
        second()
    return left < 0
