"""A problem of a model configuration, and the error that carries all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.errors import ConfigInvalid, ServerError


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, where, and how to cure it.

    `path` is a field of the configuration (`input[0].dims`) or a file; `message` is Triton's text if Triton has one.
    """

    path: str
    message: str
    hint: str = ""

    @classmethod
    def of(cls, path: str, error: ServerError) -> Problem:
        """The problem that `error` describes: at the field that it names, else at `path`."""
        return cls(error.field or path, error.message, error.hint or "")


class InvalidModelConfig(ConfigInvalid):
    """A configuration with problems: message and hint are those of the first, `problems` holds every one."""

    def __init__(self, problems: Sequence[Problem], *, model: str | None = None) -> None:
        first = problems[0]
        super().__init__(first.message, hint=first.hint or None, model=model)
        self.problems = tuple(problems)
