"""What the command line and the environment give for the fields of the settings, and which of them gave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.command_line import CommandLine
from app.environment import given_variables
from app.option_kinds import BadValue
from app.options import BadOption, Option
from app.unused_options import UNUSED_OPTIONS

FLAG = "flag"
ENVIRONMENT = "environment"
DEFAULT = "default"


@dataclass(slots=True)
class Given:
    """Values and sources by field, for the fields that were given; `without_effect` are flags and variables."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    without_effect: tuple[str, ...] = ()


def collect(options: Mapping[str, Option], arguments: Sequence[str], environ: Mapping[str, str]) -> Given:
    """The values that `arguments` and `environ` give to `options` (by field). Raises BadOption.

    Values of a repeatable option add up within one source; the command line replaces those of the environment.
    """
    everything = (*options.values(), *UNUSED_OPTIONS)
    field_of = {id(each): name for name, each in options.items()}
    given = Given()
    unused: list[str] = []

    def take(option: Option, spelled: str, source: str, texts: list[str]) -> None:
        values = [_value(option, spelled, text) for text in texts]
        name = field_of.get(id(option))
        if name is None:
            unused.append(spelled)
            return
        before = given.values[name] if option.repeatable and given.sources.get(name) == source else ()
        given.values[name] = (*before, *values) if option.repeatable else values[-1]
        given.sources[name] = source

    for option, variable, texts in given_variables(everything, environ):
        take(option, variable, ENVIRONMENT, texts)
    for option, text in CommandLine(everything).given(arguments):
        take(option, f"--{option.flag}", FLAG, [text])
    given.without_effect = tuple(dict.fromkeys(unused))
    return given


def _value(option: Option, spelled: str, text: str) -> Any:
    try:
        return option.kind.parse(text)
    except BadValue as error:
        raise BadOption.of(spelled, str(error)) from None
