"""The types of option values, which parse the text of a command line or an environment variable.

Source: docs/spec/server-options.md section 1 for the rules and the error texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

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


def _text(text: str) -> str:
    return text


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


def number(lowest: float = float("-inf")) -> Kind[float]:
    """Finite numbers from `lowest` up."""

    def parse(text: str) -> float:
        if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text):
            raise BadValue(f"Invalid option value. Got {text}")
        value = float(text)
        if not lowest <= value < float("inf"):
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


def setting(flag: str, owner: str) -> Kind[str]:
    """`<owner>,<name>=<value>`, or `<name>=<value>` if `owner` is empty. The value is the text itself."""
    form = f"'<{owner}>,<setting>=<value>'" if owner else "<setting>=<value>"

    def parse(text: str) -> str:
        rest = text.partition(",")[2] if owner else text
        if not all((text.partition(",")[0], *rest.partition("="))):
            raise BadValue(f"--{flag} option format is {form}. Got {text}")
        return text

    return Kind(form.strip("'"), parse)


def pair(flag: str, first: str, second: str) -> Kind[str]:
    """`<first>:<second>`. The value is the text itself."""

    def parse(text: str) -> str:
        if not all(text.partition(":")):
            raise BadValue(f"--{flag} argument requires format <{first}>:<{second}>. Found: {text}")
        return text

    return Kind(f"<{first}>:<{second}>", parse)


TEXT = Kind("string", _text)
# libevent, and so Triton, takes ipv6:[::1] as well as [::1].
ADDRESS = Kind("string", lambda text: text.removeprefix("ipv6:"))
FILE = Kind("string", _text, paths=Paths.FILES)
FOLDER = Kind("string", _text, paths=Paths.FOLDERS)
REPOSITORY = Kind("string", _text, ("s3://", "gs://"), Paths.FOLDERS)
BOOLEAN = Kind("true|false", _boolean, ("true", "false"))
# An option without a value on the command line; its variable takes a boolean.
FLAG = Kind("", _boolean)
# A switch that only 0 turns off, as Triton reads this variable.
NOT_ZERO = Kind("0|1", lambda text: text != "0")
# A verbose level: an integer, or true for 1 and false for 0.
LEVEL = Kind("integer|true|false", _level, ("true", "false"))
INTEGER = integer()
INTEGER64 = integer(-INT64_MAX - 1, INT64_MAX)
PORT = integer(0, 65535)
