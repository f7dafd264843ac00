"""A problem of a model configuration, and the error that carries all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.errors import ConfigInvalid


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, where, and what to do about it.

    `path` is a field of the configuration (`input[0].dims`) or a file; `message` is Triton's text where it has one.
    """

    path: str
    message: str
    hint: str = ""


class InvalidModelConfig(ConfigInvalid):
    """A configuration with problems: the message and hint are the first one's, `problems` holds every one."""

    def __init__(self, problems: Sequence[Problem], *, model: str | None = None) -> None:
        first = problems[0]
        super().__init__(first.message, hint=first.hint or None, model=model)
        self.problems = tuple(problems)
