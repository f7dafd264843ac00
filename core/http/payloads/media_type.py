"""Media types as `Content-Type` and `Accept` write them, and the choice among what is supported.

Source: RFC 9110 sections 8.3.1 and 12.5.1; spec/sagemaker.md A3 (1024 characters at most).
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
_QUALITY = re.compile(r"0(?:\.\d{0,3})?|1(?:\.0{0,3})?")
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class MediaType:
    """`essence` is `type/subtype` in lower case; names of parameters are in lower case, their values as they came."""

    essence: str
    parameters: dict[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class MediaRange:
    """One item of an Accept header. `*/*` and `text/*` match many; `quality` 0 means never."""

    media_type: MediaType
    quality: float

    def specificity(self, essence: str) -> int:
        """How closely this range names `essence`: 3 itself, 2 its type, 1 anything, 0 it does not match."""
        mine = self.media_type.essence
        if mine == essence:
            return 3
        if mine == "*/*":
            return 1
        return 2 if mine.endswith("/*") and essence.startswith(mine[:-1]) else 0


@lru_cache(maxsize=256)
def parse_media_type(text: str) -> MediaType:
    """The value of a Content-Type header. Raises InvalidRequest for what is none, or is a range."""
    _check_length(text, "Content-Type")
    media_type, end = _media_type(text, 0, "Content-Type")
    if text[end:].strip() or "*" in media_type.essence:
        raise _garbage(text, "Content-Type")
    return media_type


@lru_cache(maxsize=256)
def parse_accept(text: str) -> tuple[MediaRange, ...]:
    """The items of an Accept header, as written; an empty one accepts anything. Raises InvalidRequest for garbage."""
    _check_length(text, "Accept")
    ranges: list[MediaRange] = []
    position = 0
    while position < len(text):
        separator = _COMMA.match(text, position)
        if separator:  # empty items of a list mean nothing
            position = separator.end()
            continue
        media_type, position = _media_type(text, position, "Accept")
        quality = media_type.parameters.pop("q", "1")
        separator = _COMMA.match(text, position)
        essence = media_type.essence
        if not separator or not _QUALITY.fullmatch(quality) or (essence[:2] == "*/" and essence != "*/*"):
            raise _garbage(text, "Accept")
        ranges.append(MediaRange(media_type, float(quality)))
        position = separator.end()
    return tuple(ranges) or (MediaRange(MediaType("*/*"), 1.0),)


def choose(accept: str | None, supported: Sequence[str]) -> str | None:
    """The one of `supported` that the header likes best; None if it accepts none of them.

    The highest quality wins, then what stands first in the header, then what stands first in `supported`. What a
    closer range says of a type counts more than what a wider one says. No header accepts anything.
    """
    ranges = parse_accept(accept or "")
    best: str | None = None
    best_rank = (0.0, 0)
    for essence in supported:
        # The first of the closest ranges is the one that counts for this type.
        position = max(range(len(ranges)), key=lambda i: ranges[i].specificity(essence))
        quality = ranges[position].quality if ranges[position].specificity(essence) else 0.0
        rank = (quality, -position)
        if quality > 0 and (best is None or rank > best_rank):
            best, best_rank = essence, rank
    return best


def _media_type(text: str, position: int, header: str) -> tuple[MediaType, int]:
    found = _TYPE.match(text, position)
    if not found:
        raise _garbage(text, header)
    parameters: dict[str, str] = {}
    position = found.end()
    while item := _PARAMETER.match(text, position):
        position = item.end()
        if item[1]:
            value = item[2]
            parameters[item[1].lower()] = _ESCAPED.sub(r"\1", value[1:-1]) if value[0] == '"' else value
    return MediaType(f"{found[1]}/{found[2]}".lower(), parameters), position


def _check_length(text: str, header: str) -> None:
    if len(text) > _LONGEST:
        raise InvalidRequest(f"the {header} header has {len(text)} characters, at most {_LONGEST} are read")


def _garbage(text: str, header: str) -> InvalidRequest:
    return InvalidRequest(f"the {header} header is not understood: {text[:100]!r}", hint="a form such as text/csv")
