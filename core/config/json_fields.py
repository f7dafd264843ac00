"""Strict reading of hand-written JSON: typed fields, no unknown fields, and errors that name the field."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence

_LONGEST_SHOWN = 60


class Malformed(Exception):
    """An error in a document. The text begins with the field if the error concerns one; `hint` may be empty."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Fields:
    """The fields of one JSON object. `path` is the field that holds the object, empty for the whole document."""

    def __init__(self, value: object, path: str, known: Sequence[str]) -> None:
        """Raises Malformed if `value` is not an object or has a field that is not among `known`."""
        if not isinstance(value, dict):
            raise Malformed(f"{path or 'the document'}: expected an object, got {shown(value)}")
        self._values: dict[str, object] = value
        self._path = path
        for name in value:
            if name not in known:
                raise Malformed(f"{self.path_of(name)}: unknown field", hint=nearest(name, known))

    def path_of(self, name: str) -> str:
        name = _cut(name)
        return f"{self._path}.{name}" if self._path else name

    def has(self, name: str) -> bool:
        return name in self._values

    def value(self, name: str) -> object:
        """Raises Malformed if the field is missing."""
        if name not in self._values:
            raise Malformed(f"{self.path_of(name)}: missing")
        return self._values[name]

    def text(self, name: str) -> str:
        value = self.value(name)
        if not isinstance(value, str):
            raise Malformed(f"{self.path_of(name)}: expected a string, got {shown(value)}")
        return value

    def elements(self, name: str) -> list[object]:
        value = self.value(name)
        if not isinstance(value, list):
            raise Malformed(f"{self.path_of(name)}: expected a list, got {shown(value)}")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of non-negative integers."""
        integers = []
        for index, value in enumerate(self.elements(name)):
            if type(value) is not int or value < 0:  # in Python a bool is an int
                place = f"{self.path_of(name)}[{index}]"
                raise Malformed(f"{place}: expected an integer that is not negative, got {shown(value)}")
            integers.append(value)
        return tuple(integers)

    def section(self, name: str, known: Sequence[str]) -> Fields:
        return Fields(self.value(name), self.path_of(name), known)

    def sections(self, name: str, known: Sequence[str]) -> Sequence[Fields]:
        """A list of objects, each with a unique `name`."""
        path = self.path_of(name)
        sections = [Fields(value, f"{path}[{index}]", known) for index, value in enumerate(self.elements(name))]
        seen: set[str] = set()
        for entry in sections:
            own = entry.text("name")
            if own in seen:
                raise Malformed(f"{entry.path_of('name')}: {shown(own)} appears twice in {path}")
            seen.add(own)
        return sections


def read_json(content: bytes) -> object:
    """Parse a JSON text in UTF-8. Stricter than Python's parser: no NaN, and no name twice in one object.

    Raises Malformed.
    """
    try:
        value: object = json.loads(
            content.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
        )
    except UnicodeDecodeError as error:
        raise Malformed(f"byte {error.start} is not UTF-8") from error
    except ValueError as error:  # JSONDecodeError, or an integer with more digits than Python accepts
        raise Malformed(f"not JSON: {error}") from error
    except RecursionError:
        raise Malformed("unreadable JSON: nested too deeply") from None
    return value


def shown(value: object) -> str:
    """A JSON value as messages show it; lists and objects only by their type."""
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, str):
        return repr(_cut(value))
    return _cut(json.dumps(value))


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint with the one of `known` that is nearest to `name`, or with all of them if none is near."""
    names = list(known)
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean '{found[0]}'?" if found else f"known are: {', '.join(names)}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise Malformed(f"field {shown(name)} appears twice in one object")
            seen.add(name)
    return fields


def _no_constant(text: str) -> object:
    raise Malformed(f"not JSON: {text} is not a JSON number", hint=f'write it as a string: "{text}"')


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise Malformed(f"number {_cut(text)} is out of range")
    return number
