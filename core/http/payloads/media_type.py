"""Media types in `Content-Type` and `Accept` headers, and the choice of a supported one.

Source: RFC 9110 sections 8.3.1 and 12.5.1; docs/spec/sagemaker.md section A3 (1024 characters at most).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from core.errors import InvalidRequest

_LONGEST = 1024
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = re.compile(rf'\s*;\s*(?:({_TOKEN})\s*=\s*({_TOKEN}|"(?:[^"\\]|\\.)*"))?')
_TYPE = re.compile(rf"\s*({_TOKEN})/({_TOKEN})")
_COMMA = re.compile(r"\s*(?:,|\Z)")
# Java's HttpURLConnection sends `*; q=.2` unless it is told otherwise: no slash, and no zero before the point.
_ANYTHING = re.compile(r"\s*\*(?=\s*(?:[;,]|\Z))")
_QUALITY = re.compile(r"0?\.[0-9]+|0(?:\.0*)?|1(?:\.0*)?")
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class MediaType:
    """`essence` is `type/subtype` in lower case. Names of parameters are in lower case, values as received."""

    essence: str
    parameters: dict[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class MediaRange:
    """One item of an Accept header. `*/*` and `text/*` match many; `quality` 0 means never."""

    media_type: MediaType
    quality: float

    def specificity(self, essence: str) -> int:
        """How closely the range matches `essence`: 3 exactly, 2 by its type, 1 by `*/*`, 0 not at all."""
        mine = self.media_type.essence
        if mine == essence:
            return 3
        if mine == "*/*":
            return 1
        return 2 if mine.endswith("/*") and essence.startswith(mine[:-1]) else 0


@lru_cache(maxsize=256)
def parse_media_type(text: str) -> MediaType:
    """Parse the value of a Content-Type header. Raises InvalidRequest for a malformed value or a range."""
    _check_length(text, "Content-Type")
    found = _TYPE.match(text)
    if found:
        parameters, end = _parameters(text, found.end())
        if not text[end:].strip() and "*" not in found[0]:
            return MediaType(f"{found[1]}/{found[2]}".lower(), parameters)
    raise _garbage(text, "Content-Type")


@lru_cache(maxsize=256)
def parse_accept(text: str) -> tuple[MediaRange, ...]:
    """Parse the items of an Accept header, in order; an empty header accepts anything.

    Malformed items are skipped. Raises InvalidRequest if all of them are malformed.
    """
    _check_length(text, "Accept")
    ranges: list[MediaRange] = []
    skipped = False
    position = 0
    while position < len(text):
        separator = _COMMA.match(text, position)
        if separator:  # empty items of a list mean nothing
            position = separator.end()
            continue
        found, position = _media_range(text, position)
        if found is None:
            skipped = True
        else:
            ranges.append(found)
    if skipped and not ranges:
        raise _garbage(text, "Accept")
    return tuple(ranges) or (MediaRange(MediaType("*/*"), 1.0),)


def choose(accept: str | None, supported: Sequence[str]) -> str | None:
    """The member of `supported` that the header prefers; None if it accepts none of them.

    The highest quality wins, then the first in the header, then the first in `supported`. The quality of a type is that
    of the closest range that matches it. A missing header accepts anything.
    """
    ranges = parse_accept(accept or "")
    best: str | None = None
    best_rank = (0.0, 0)
    for essence in supported:
        # The first of the closest ranges counts.
        position = max(range(len(ranges)), key=lambda i: ranges[i].specificity(essence))
        quality = ranges[position].quality if ranges[position].specificity(essence) else 0.0
        rank = (quality, -position)
        if quality > 0 and (best is None or rank > best_rank):
            best, best_rank = essence, rank
    return best


def _media_range(text: str, position: int) -> tuple[MediaRange | None, int]:
    """The item at `position`, None if it is malformed, and the position of the next item."""
    found = _TYPE.match(text, position) or _ANYTHING.match(text, position)
    if found:
        essence = f"{found[1]}/{found[2]}".lower() if found.re is _TYPE else "*/*"
        parameters, position = _parameters(text, found.end())
        quality = parameters.pop("q", "1")
        separator = _COMMA.match(text, position)
        if separator and _QUALITY.fullmatch(quality) and (essence[:2] != "*/" or essence == "*/*"):
            return MediaRange(MediaType(essence, parameters), float(quality)), separator.end()
    comma = text.find(",", position)
    return None, len(text) if comma < 0 else comma + 1


def _parameters(text: str, position: int) -> tuple[dict[str, str], int]:
    """The parameters at `position`, and the position after them."""
    parameters: dict[str, str] = {}
    while item := _PARAMETER.match(text, position):
        position = item.end()
        if item[1]:
            value = item[2]
            parameters[item[1].lower()] = _ESCAPED.sub(r"\1", value[1:-1]) if value[0] == '"' else value
    return parameters, position


def _check_length(text: str, header: str) -> None:
    if len(text) > _LONGEST:
        raise InvalidRequest(f"the {header} header has {len(text)} characters, at most {_LONGEST} are read")


def _garbage(text: str, header: str) -> InvalidRequest:
    return InvalidRequest(f"the {header} header is not understood: {text[:100]!r}", hint="a form such as text/csv")
