"""The options of the command line, the kinds of their values, and the rows and groups that declare them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar, cast, dataclass_transform

T_co = TypeVar("T_co", covariant=True)

_TRUE = frozenset({"true", "on", "1"})
_FALSE = frozenset({"false", "off", "0"})
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
# A longer text exceeds every bound, and parsing it would take time that is quadratic in its length.
_LONGEST_NUMBER = 40
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class BadValue(Exception):
    """A text is not a valid value of its option; the argument is the reason."""


class Paths(Enum):
    """The paths that a value may be; a shell completes them."""

    NONE = "none"
    FOLDERS = "folders"
    FILES = "files"


@dataclass(frozen=True, slots=True)
class Kind(Generic[T_co]):
    """One type. The help text shows `name` for a value; `parse` raises BadValue.

    A shell completes `words` and `paths`; a word that ends with a slash is only the beginning of a value.
    """

    name: str
    parse: Callable[[str], T_co]
    words: tuple[str, ...] = ()
    paths: Paths = Paths.NONE


def _boolean(text: str) -> bool:
    folded = text.lower()
    if folded not in _TRUE | _FALSE:
        raise BadValue(f"invalid value for bool option: {text}")
    return folded in _TRUE


def _level(text: str) -> int:
    folded = text.lower()
    return int(folded == "true") if folded in {"true", "false"} else integer(0).parse(text)


def integer(lowest: int = -INT32_MAX - 1, highest: int = INT32_MAX) -> Kind[int]:
    """Integers from `lowest` to `highest`."""

    def parse(text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise BadValue(f"Invalid option value. Got {text}")
        if len(text) > _LONGEST_NUMBER or not lowest <= int(text) <= highest:
            raise BadValue(f"Provided option value is out of bound. Got {text}")
        return int(text)

    return Kind("integer", parse)


def at_least(lowest: int) -> Kind[int]:
    """Integers; a smaller one counts as `lowest`, as in tritonserver."""
    return Kind("integer", lambda text: max(lowest, INTEGER.parse(text)))


def number(lowest: float = float("-inf"), highest: float = sys.float_info.max) -> Kind[float]:
    """Finite numbers from `lowest` to `highest`."""

    def parse(text: str) -> float:
        if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text):
            raise BadValue(f"Invalid option value. Got {text}")
        value = float(text)
        if not lowest <= value <= highest:
            raise BadValue(f"Provided option value is out of bound. Got {text}")
        return value

    return Kind("number", parse)


def choice(flag: str, *values: str) -> Kind[str]:
    """One of `values`, in any case."""
    by_folded = {value.lower(): value for value in values}

    def parse(text: str) -> str:
        value = by_folded.get(text.lower())
        if value is None:
            raise BadValue(f"invalid argument for --{flag}: '{text}' is not one of {', '.join(values)}")
        return value

    return Kind("|".join(values), parse, values)


def checked(name: str, check: Callable[[str], object]) -> Kind[str]:
    """Texts for which `check` does not raise BadValue; the value is the text itself."""

    def parse(text: str) -> str:
        check(text)
        return text

    return Kind(name, parse)


def setting(flag: str, owner: str, *names: str) -> Kind[str]:
    """`<owner>,<name>=<value>`, or `<name>=<value>` if `owner` is empty, with one of `names` if any. The value
    is the text itself.
    """
    form = f"'<{owner}>,<setting>=<value>'" if owner else "<setting>=<value>"

    def parse(text: str) -> str:
        rest = text.partition(",")[2] if owner else text
        if not all((text.partition(",")[0], *rest.partition("="))):
            raise BadValue(f"--{flag} option format is {form}. Got {text}")
        name = rest.partition("=")[0]
        if names and name not in names:
            raise BadValue(f"there is no setting '{name}', only {', '.join(names)}")
        return text

    return Kind(form.strip("'"), parse)


def pair(flag: str, first: str, second: str, kind: Kind[Any]) -> Kind[str]:
    """`<first>:<second>`, a number from 0 up and what `kind` takes. The value is the text itself."""

    def parse(text: str) -> str:
        left, _, right = parts = text.partition(":")
        if not all(parts):
            raise BadValue(f"--{flag} argument requires format <{first}>:<{second}>. Found: {text}")
        integer(0).parse(left)
        kind.parse(right)
        return text

    return Kind(f"<{first}>:<{second}>", parse)


TEXT = Kind("string", str)
# libevent, and so Triton, takes ipv6:[::1] as well as [::1].
ADDRESS = Kind("string", lambda text: text.removeprefix("ipv6:"))
FILE = Kind("string", str, paths=Paths.FILES)
FOLDER = Kind("string", str, paths=Paths.FOLDERS)
REPOSITORY = Kind("string", str, ("s3://", "gs://", "as://"), Paths.FOLDERS)
BOOLEAN = Kind("true|false", _boolean, ("true", "false"))
# An option without a value on the command line; its variable takes a boolean.
SWITCH = Kind("", _boolean)
# A switch that only 0 turns off, as Triton reads this variable.
NOT_ZERO = Kind("0|1", lambda text: text != "0")
# A verbose level: an integer, or true for 1 and false for 0.
LEVEL = Kind("integer|true|false", _level, ("true", "false"))
INTEGER = integer()
INTEGER64 = integer(-INT64_MAX - 1, INT64_MAX)
PORT = integer(0, 65535)


T = TypeVar("T")
C = TypeVar("C")

PREFIX = "TRIDENT_"
_METADATA = "option"
_MASK = "***"


class BadOption(Exception):
    """An option or a variable is invalid. The argument is the whole text for the person who starts the server."""

    @classmethod
    def of(cls, source: str, reason: str) -> BadOption:
        noun = "option" if source.startswith("-") else "variable"
        return cls(f'Bad {noun}: "{source}".\n{reason}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option. `flag` is its name without dashes; it is empty if only `variable` can set the option.

    tritonserver does not have an `own` option. A `secret` value is never shown in full. `shown_default` describes a
    default that depends on other options. With `empty_counts` an empty variable is a value.
    """

    flag: str
    kind: Kind[Any]
    help: str = ""
    section: str = ""
    variable: str = ""
    default: Any = None
    aliases: tuple[str, ...] = ()
    repeatable: bool = False
    secret: bool = False
    own: bool = False
    shown_default: str = ""
    empty_counts: bool = False

    @classmethod
    def of_command(cls, flag: str, kind: Kind[Any], default: Any, help: str, *, repeatable: bool = False) -> Option:
        """Return an option of a command that tritonserver does not have."""
        return cls(flag=flag, kind=kind, default=default, help=help, repeatable=repeatable, own=True)

    def placed(self, section: str, flag: str) -> Option:
        """The option in a section of the help text, under its name on the command line."""
        return replace(self, section=section, flag=flag, variable=self.variable or variable_of(flag))

    @property
    def takes_value(self) -> bool:
        return self.kind is not SWITCH

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


def option(default: T, kind: Kind[T], help: str, *, flag: str = "", **more: Any) -> T:
    """A row of a `group`: an option of which the last given value counts; `group` makes a field of it.

    Its name is that of the field unless `flag` is given. `more` are fields of Option; with a `variable`, only this
    variable sets it.
    """
    return cast(T, Option(flag=flag, kind=kind, help=help, default=default, **more))


def repeated(kind: Kind[T], help: str, **more: Any) -> tuple[T, ...]:
    """A row of a `group`: an option of which all given values count."""
    return cast(tuple[T, ...], Option(flag="", kind=kind, help=help, default=(), repeatable=True, **more))


@dataclass_transform(frozen_default=True, kw_only_default=True)
def group(section: str) -> Callable[[type[C]], type[C]]:
    """Make a frozen dataclass of a class whose fields are rows, `name: type = option(...)`, of one section."""

    def decorate(rows: type[C]) -> type[C]:
        for name, row in list(vars(rows).items()):
            if isinstance(row, Option):
                flag = row.flag or ("" if row.variable else name.replace("_", "-"))
                setattr(rows, name, field(default=row.default, metadata={_METADATA: row.placed(section, flag)}))
        return dataclass(frozen=True, kw_only=True, repr=False)(rows)

    return decorate


def options_by_field(settings: Any) -> dict[str, Option]:
    """The options of a dataclass by the name of their field, in the order of declaration."""
    return {each.name: each.metadata[_METADATA] for each in fields(settings) if _METADATA in each.metadata}


@dataclass(slots=True)
class OptionValues:
    """The values that were given to `options`, and the source of each, by the names of fields.

    `without_effect` are the flags and variables that were given and have no effect.
    """

    options: Mapping[str, Option]
    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    without_effect: tuple[str, ...] = ()

    def set(self, name: str, value: Any, source: str) -> None:
        self.values[name] = value
        self.sources[name] = source

    def value(self, name: str) -> Any:
        return self.values.get(name, self.options[name].default)

    def of(self, rows: type[C]) -> C:
        return rows(**{name: self.value(name) for name in options_by_field(rows)})


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


def spell_endpoint(address: str, port: int) -> str:
    """Where a service listens, as a person reads it: `address:port`, or `unix:<path>`, which has no port."""
    return address if is_unix(address) else f"{address}:{port}"


def is_unix(address: str) -> bool:
    """True for a Unix socket, as `unix:<path>`."""
    return address.startswith("unix:")
