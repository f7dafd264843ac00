"""Sizes in bytes as the report shows them."""

from __future__ import annotations

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def size_text(count: int) -> str:
    """`count` bytes in the largest binary unit that fits, such as `1.5 GiB`."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in _UNITS:
        value /= 1024
        if value < 1024 or unit == _UNITS[-1]:
            break
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"
