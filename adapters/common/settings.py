"""The text of one server option, as a platform's variables give it."""

from __future__ import annotations

from typing import NamedTuple


class OptionText(NamedTuple):
    """The flag of the option, the text of its value, and the source: a variable's name, or `platform` for a default."""

    flag: str
    text: str
    source: str


class SettingRow(NamedTuple):
    """The flag or variable that sets the value, the value as a person reads it, and where the value was set."""

    name: str
    value: str
    source: str
