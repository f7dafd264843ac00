"""The values that platform, environment and command line give to the settings, and the source of each value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from app.settings.command_line import CommandLine
from app.settings.environment import given_variables
from app.settings.option import BadOption, Option
from app.settings.option_types import BadValue
from app.settings.unused import UNUSED_OPTIONS

FLAG = "flag"
ENVIRONMENT = "environment"
DEFAULT = "default"


class PlatformText(NamedTuple):
    """The text that a platform gives for one option, and the variable that contains it."""

    option: Option
    text: str
    source: str


@dataclass(slots=True)
class Given:
    """The values and sources of the given fields; `without_effect` are the flags and variables that have no effect."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    without_effect: tuple[str, ...] = ()

    def set(self, name: str, value: Any, source: str) -> None:
        self.values[name] = value
        self.sources[name] = source


def collect(
    options: Mapping[str, Option],
    arguments: Sequence[str],
    environ: Mapping[str, str],
    *,
    platform: Iterable[PlatformText] = (),
) -> Given:
    """The values that `arguments`, `environ` and `platform` give to `options` (by field). Raises BadOption.

    `arguments` override `environ`, which overrides `platform`; within `platform` the last text counts. The values of a
    repeatable option accumulate within one source and replace those of another.
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
        given.set(name, (*before, *values) if option.repeatable else values[-1], source)

    for option, text, source in platform:
        _check_platform_text(option, text, source)
        take(option, source, source, [text])
    for option, variable, texts in given_variables(everything, environ):
        take(option, variable, ENVIRONMENT, texts)
    for option, text in CommandLine(everything).given(arguments):
        take(option, f"--{option.flag}", FLAG, [text])
    given.without_effect = tuple(dict.fromkeys(unused))
    return given


def parse_arguments(options: Iterable[Option], arguments: Sequence[str], source: str) -> list[PlatformText]:
    """The options of the command line in the variable `source`. Raises BadOption, which names the variable."""
    try:
        return [PlatformText(option, text, source) for option, text in CommandLine(options).given(arguments)]
    except BadOption as error:
        raise BadOption.of(source, str(error)) from None


def _check_platform_text(option: Option, text: str, source: str) -> None:
    """Raise BadOption for an invalid text. The variable is not named after the option, so the error names both."""
    try:
        option.kind.parse(text)
    except BadValue as error:
        raise BadOption.of(source, f"{error}; --{option.flag} takes {option.kind.name or 'no value'}") from None


def _value(option: Option, spelled: str, text: str) -> Any:
    try:
        return option.kind.parse(text)
    except BadValue as error:
        raise BadOption.of(spelled, str(error)) from None
