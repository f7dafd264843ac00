"""Seconds and bytes as reports write them."""

from __future__ import annotations

_MIB = 1 << 20
_MB = 1_000_000
_TENTH = 10


def seconds(duration: float) -> str:
    """A duration in seconds, as text with its unit."""
    return f"{duration * 1000:.0f} ms" if duration < 1 else f"{duration:g} s"


def size(count: int) -> str:
    """A number of bytes, as text with the largest unit in which it is a short number."""
    if count and count % _MIB == 0:
        return f"{count // _MIB} MiB"
    return f"{count / _MB:g} MB" if count >= _MB and count * _TENTH % _MB == 0 else f"{count} bytes"
