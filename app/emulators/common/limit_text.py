"""Limits in words, as reports name them."""

from __future__ import annotations

_MIB = 1 << 20
_MB = 1_000_000
_TENTH = 10


def seconds(limit: float) -> str:
    """A time limit in words."""
    return f"{limit * 1000:.0f} ms" if limit < 1 else f"{limit:g} s"


def size(limit: int) -> str:
    """A size limit in words."""
    if limit and limit % _MIB == 0:
        return f"{limit // _MIB} MiB"
    return f"{limit / _MB:g} MB" if limit >= _MB and limit * _TENTH % _MB == 0 else f"{limit} bytes"
