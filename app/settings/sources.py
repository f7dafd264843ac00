"""The values that platform, environment and command line give to the settings, and the source of each value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from trident.adapters.common.options import PREFIX, BadOption, BadValue, Option, OptionValues
from trident.app.settings.groups import UNUSED_OPTIONS

# Kubernetes sets these in every pod in the namespace of a service named `trident` or `trident-…`. They are no settings.
_SERVICE_LINK = re.compile(r"TRIDENT_(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT_\d+_(TCP|UDP|SCTP)\w*)", re.ASCII)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://", re.ASCII)
_SEPARATOR = re.compile(r"[;\r\n]+")


def given_variables(options: Iterable[Option], environ: Mapping[str, str]) -> list[tuple[Option, str, list[str]]]:
    """Every option that `environ` sets, with the name of the variable and the texts of its values.

    Raises BadOption for a variable with our prefix that belongs to no option.
    """
    known = {variable: each for each in options for variable in each.variables}
    found: list[tuple[Option, str, list[str]]] = []
    for name, text in environ.items():
        if _is_service_link(name, text):
            continue
        option = known.get(name)
        if option is not None:
            texts = [each for each in _SEPARATOR.split(text) if each] if option.repeatable else [text]
            found += [(option, name, texts)] if text or option.empty_counts else []
        elif name.startswith(PREFIX):
            raise BadOption.of(name, f"unknown variable{nearest(name, known)}")
    return found


def _is_service_link(name: str, text: str) -> bool:
    if not name.startswith(PREFIX):
        return False
    return bool(_SERVICE_LINK.fullmatch(name) or (name.endswith("_PORT") and _SERVICE_ADDRESS.match(text)))


# Source: docs/spec/server-options.md section 1.


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


def read_values(options: Sequence[Option], arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The values of all options by flag, and the arguments that are not options. Raises BadOption."""
    values = {each.flag: each.default for each in options}
    given, others = CommandLine(options).split(arguments)
    for option, text in given:
        try:
            value = option.kind.parse(text)
        except BadValue as error:
            raise BadOption.of(f"--{option.flag}", str(error)) from None
        values[option.flag] = (*values[option.flag], value) if option.repeatable else value
    return values, others


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """`; did you mean X?` with the name in `known` that is closest to `name`; empty if none is close."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {prefix}{found[0]}?" if found else ""


FLAG = "flag"
ENVIRONMENT = "environment"
DEFAULT = "default"


class PlatformText(NamedTuple):
    """The text that a platform gives for one option, and the variable that contains it."""

    option: Option
    text: str
    source: str


def collect(
    options: Mapping[str, Option],
    arguments: Sequence[str],
    environ: Mapping[str, str],
    *,
    platform: Iterable[PlatformText] = (),
) -> OptionValues:
    """The values that `arguments`, `environ` and `platform` give to `options` (by field). Raises BadOption.

    `arguments` override `environ`, which overrides `platform`; within `platform` the last text counts. The values of a
    repeatable option accumulate within one source and replace those of another.
    """
    everything = (*options.values(), *UNUSED_OPTIONS)
    field_of = {id(each): name for name, each in options.items()}
    given = OptionValues(options)
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
