"""GNU long options: the options of a command line and the texts of their values.

Source: docs/spec/server-options.md section 1.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence

from app.settings.option import BadOption, Option

FLAG_GIVEN = "true"


class CommandLine:
    """Finds options by name: `--name=value`, `--name value`, `--name` for a flag, and unique prefixes of names.

    A prefix is matched against tritonserver's names first, so that our own names never make it ambiguous.
    """

    def __init__(self, options: Iterable[Option]) -> None:
        self._options = {name: each for each in options if each.flag for name in each.names}

    def given(self, arguments: Sequence[str]) -> list[tuple[Option, str]]:
        """Every option in `arguments` with the text of its value, in order. Raises BadOption."""
        found, others = self.split(arguments)
        if others:
            raise BadOption(f"Unexpected argument: {others[0]}")
        return found

    def split(self, arguments: Sequence[str]) -> tuple[list[tuple[Option, str]], list[str]]:
        """The options as `given` returns them, and the other arguments. Raises BadOption."""
        found: list[tuple[Option, str]] = []
        others: list[str] = []
        remaining = iter(arguments)
        for argument in remaining:
            if argument == "--":
                others += remaining
            elif argument.startswith("--"):
                found.append(self._given(argument, remaining))
            else:
                others.append(argument)
        return found, others

    def _given(self, argument: str, remaining: Iterator[str]) -> tuple[Option, str]:
        name, equals, text = argument[2:].partition("=")
        option = self._option(name)
        if not option.takes_value:
            if equals:
                raise BadOption.of(f"--{option.flag}", "it takes no value: give its name alone, or leave it out")
            return option, FLAG_GIVEN
        if equals:
            return option, text
        following = next(remaining, None)
        if following is None:
            raise BadOption.of(f"--{option.flag}", f"a value is missing; it takes {option.kind.name}")
        return option, following

    def _option(self, name: str) -> Option:
        if name in self._options:
            return self._options[name]
        matching = {found for found in self._options if name and found.startswith(name)}
        matching = {found for found in matching if not self._options[found].own} or matching
        if len({self._options[found].flag for found in matching}) == 1:
            return self._options[matching.pop()]
        if matching:
            names = ", ".join(f"--{found}" for found in sorted(matching))
            raise BadOption.of(f"--{name}", f"ambiguous: it may be {names}")
        raise BadOption.of(f"--{name}", f"unknown option{nearest(name, self._options, '--')}")


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """`; did you mean X?` with the name in `known` that is closest to `name`; empty if none is close."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {prefix}{found[0]}?" if found else ""
