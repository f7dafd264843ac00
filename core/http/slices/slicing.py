"""How a long text is read in slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# Of strings, the slowest of all to read, this takes 2 to 5 milliseconds. Less would not be noticed: a thread may hold
# the interpreter for 5.
SLICE = 1 << 18


def _go_on() -> None:
    """The pause of a reader that nothing stops."""


@dataclass(frozen=True, slots=True)
class Slicing:
    """`pause` is called before each slice, and raises the error with which the reader is to stop.

    `size` is the number of bytes of a slice. Slices end between elements or lines, so that some are longer.
    """

    pause: Callable[[], None] = _go_on
    size: int = SLICE
