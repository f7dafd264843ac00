"""How many responses a model may send to a request before the client takes them."""

from __future__ import annotations

from typing import NamedTuple


class WindowLimits(NamedTuple):
    """A window is full from this many responses, or this many bytes, on."""

    responses: int = 64
    nbytes: int = 8 << 20


DEFAULT_WINDOW = WindowLimits()
