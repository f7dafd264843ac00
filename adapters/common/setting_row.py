"""One row of the table of settings that the server prints when it starts."""

from __future__ import annotations

from typing import NamedTuple


class SettingRow(NamedTuple):
    """The flag or variable that sets the value, the value as a person reads it, and where the value was set."""

    name: str
    value: str
    source: str
