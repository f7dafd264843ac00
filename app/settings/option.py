"""One option of the command line, and the dataclass field that it sets."""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

from app.settings.option_types import FLAG, Kind

T = TypeVar("T")

PREFIX = "TRIDENT_"
_METADATA = "option"
_MASK = "***"


class BadOption(Exception):
    """An option or a variable is invalid. The argument is the whole text for the person who starts the server."""

    @classmethod
    def of(cls, source: str, reason: str) -> BadOption:
        """The error for one option (`--name`) or variable (`NAME`)."""
        noun = "option" if source.startswith("--") else "variable"
        return cls(f'Bad {noun}: "{source}".\n{reason}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option. `flag` is its name without dashes; it is empty if only `variable` can set the option.

    tritonserver does not have an `own` option. A `secret` value is never shown in full. `shown_default` describes a
    default that depends on other options. With `empty_counts` an empty variable is a value.
    """

    flag: str
    kind: Kind[Any]
    help: str
    section: str
    variable: str
    default: Any = None
    aliases: tuple[str, ...] = ()
    repeatable: bool = False
    secret: bool = False
    own: bool = False
    shown_default: str = ""
    empty_counts: bool = False

    @property
    def takes_value(self) -> bool:
        return self.kind is not FLAG

    @property
    def names(self) -> tuple[str, ...]:
        return (self.flag, *self.aliases)

    @property
    def variables(self) -> tuple[str, ...]:
        return (self.variable, *(variable_of(alias) for alias in self.aliases))

    @property
    def spelling(self) -> str:
        """The option as it is written: `--name=<value>`, or its variable if it has no flag."""
        value = ""
        if self.takes_value:
            value = f"={self.kind.name}" if set("<|") & set(self.kind.name) else f"=<{self.kind.name}>"
        if not self.flag:
            return self.variable + value
        return ", ".join(f"--{name}{value}" for name in self.names)

    @property
    def default_text(self) -> str:
        """The default as a person reads it; empty without a default."""
        return self.shown_default or self.show(self.default)

    def show(self, value: Any) -> str:
        """`value` as a person reads it. A secret is masked after its first `=`, or completely without one."""
        if isinstance(value, tuple):
            return ", ".join(self.show(each) for each in value)
        if isinstance(value, bool):
            return "true" if value else "false"
        if value is None:
            return ""
        if isinstance(value, float):
            return f"{value:g}"
        text = str(value)
        if not self.secret or not text:
            return text
        name, equals, _ = text.partition("=")
        return f"{name}={_MASK}" if equals else _MASK


def variable_of(flag: str) -> str:
    return PREFIX + flag.upper().replace("-", "_")


def option(
    default: T,
    flag: str,
    kind: Kind[T],
    help: str,
    *,
    section: str,
    variable: str = "",
    own: bool = False,
    shown_default: str = "",
    empty_counts: bool = False,
    secret: bool = False,
) -> T:
    """A dataclass field for the value of an option; the last of several given values counts."""
    described = Option(
        flag=flag,
        kind=kind,
        help=help,
        section=section,
        variable=variable or variable_of(flag),
        default=default,
        own=own,
        shown_default=shown_default,
        empty_counts=empty_counts,
        secret=secret,
    )
    made: T = field(default=default, metadata={_METADATA: described})
    return made


def repeated(
    flag: str,
    kind: Kind[T],
    help: str,
    *,
    section: str,
    aliases: tuple[str, ...] = (),
    secret: bool = False,
    own: bool = False,
) -> tuple[T, ...]:
    """A dataclass field for all given values of an option."""
    described = Option(
        flag=flag,
        kind=kind,
        help=help,
        section=section,
        variable=variable_of(flag),
        default=(),
        aliases=aliases,
        repeatable=True,
        secret=secret,
        own=own,
    )
    made: tuple[T, ...] = field(default=(), metadata={_METADATA: described})
    return made


def option_of(described: Field[Any]) -> Option | None:
    """The option that sets a dataclass field; None for a field without one."""
    found: Option | None = described.metadata.get(_METADATA)
    return found


def options_by_field(settings: Any) -> dict[str, Option]:
    """The options of a dataclass by the name of their field, in the order of declaration."""
    found = {each.name: option_of(each) for each in fields(settings)}
    return {name: each for name, each in found.items() if each is not None}
