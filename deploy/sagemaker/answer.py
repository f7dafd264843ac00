"""A placeholder for a value from the answer to an earlier call of the same plan."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import jmespath


class Answer(str):
    """A text that stands for the value; its characters describe it in a printed plan.

    `path` is a JMESPath into the last answer to `operation`. With `each` the path leads to a list, and the call is made
    once for each of its values. Values that do not match the whole regular expression `matching` are left out.
    """

    __slots__ = ("each", "matching", "operation", "path")
    operation: str
    path: str
    each: bool
    matching: str

    def __new__(cls, operation: str, path: str, *, each: bool = False, matching: str = "") -> Answer:
        fit = f" like {matching}" if matching else ""
        made = super().__new__(cls, f"<{'each ' if each else ''}{path} of {operation}{fit}>")
        made.operation, made.path, made.each, made.matching = operation, path, each, matching
        return made

    def values(self, answers: Mapping[str, Any]) -> list[Any]:
        """The values in `answers`, which are keyed by operation; at most one without `each`."""
        found = member(self.path, answers.get(self.operation))
        listed = found if self.each and isinstance(found, list) else [found]
        return [value for value in listed if value is not None and self._fits(value)]

    def _fits(self, value: Any) -> bool:
        return not self.matching or re.fullmatch(self.matching, str(value)) is not None


def member(path: str, answer: Any) -> Any:
    """The value at the JMESPath `path`; None if there is none."""
    return jmespath.search(path, answer)


def answers_in(value: Any) -> Iterator[Answer]:
    """Every Answer in the parameters of a call, at any depth."""
    if isinstance(value, Answer):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from answers_in(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from answers_in(each)


def replaced(value: Any, known: Mapping[Answer, Any]) -> Any:
    """`value` with its Answers replaced by their values in `known`."""
    if isinstance(value, Answer):
        return known[value]
    if isinstance(value, Mapping):
        return {name: replaced(each, known) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [replaced(each, known) for each in value]
    return value
