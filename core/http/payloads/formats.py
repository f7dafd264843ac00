"""The table of formats: their media types, decoders and encoders.

Source: docs/spec/sagemaker.md section C "Content types".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.arrays import decode_npy, decode_npz, decode_octets, decode_raw, encode_npy, encode_npz
from trident.core.http.payloads.csv import decode_csv, encode_csv
from trident.core.http.payloads.json import decode_json, decode_jsonlines, encode_json, encode_jsonlines
from trident.core.http.payloads.payload import (
    V2_INPUTS,
    DecodedPayload,
    DecodeRules,
    DocumentForm,
    OutputColumn,
    document_form,
)
from trident.core.inference.tensors import Buffer

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


SIZE = "json-header-size"


class BinaryType:
    """A platform's type of v2 bodies with binary tensors, whose parameter is the length of the JSON before them.

    `essence` is the media type without its parameter, `prefix` the text before the number."""

    def __init__(self, essence: str) -> None:
        self.essence = essence
        self.prefix = f"{essence};{SIZE}="
        # Clients repeat a few types.
        self.size_text = lru_cache(maxsize=256)(self._size_text)

    def _size_text(self, content_type: str) -> str | None:
        """The text of the length, valid or not; None for another type. Never raises.

        "" if the header contains the type but is malformed: the request is then refused for a missing length.
        """
        if content_type.startswith(self.prefix):
            return content_type[len(self.prefix) :]
        if self.essence not in content_type.lower():
            return None
        try:
            media_type = parse_media_type(content_type)
        except InvalidRequest:
            return ""
        return media_type.parameters.get(SIZE, "") if media_type.essence == self.essence else ""

    def missing_size(self) -> InvalidRequest:
        """The error for a request of this type without a length."""
        return InvalidRequest(f"Content-Type must be '{self.prefix}N', N being the length of the JSON in bytes")

    def of(self, json_size: int) -> str:
        return f"{self.prefix}{json_size}"


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


Decode = Callable[[Buffer, ModelSpec, DecodeRules], DecodedPayload]
# The parts of the content, which are not joined: that would hold the interpreter for 25 ms if they have 45 MB.
Encode = Callable[[list[OutputColumn]], list[bytes]]

_CHARSETS = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})


class UnsupportedMediaType(InvalidRequest):
    """There is no decoder for the body's Content-Type."""


class NotAcceptable(InvalidRequest):
    """There is no encoder for any type that Accept names."""


@dataclass(frozen=True, slots=True)
class Format:
    """Responses have the first of `media_types`. `text`: the format is text, which must be UTF-8."""

    media_types: tuple[str, ...]
    decode: Decode
    encode: Encode
    text: bool = True


JSON = Format(("application/json",), decode_json, encode_json)
CSV = Format(("text/csv",), decode_csv, encode_csv)
JSONLINES = Format(
    (
        "application/jsonlines",
        "application/jsonl",
        "application/x-jsonlines",
        "application/x-ndjson",
        "application/x-jsonl",
    ),
    decode_jsonlines,
    encode_jsonlines,
)
NPY = Format(("application/x-npy",), decode_npy, encode_npy, text=False)
NPZ = Format(("application/x-npz",), decode_npz, encode_npz, text=False)

# In the order of preference for `*/*`.
FORMATS = (JSON, CSV, JSONLINES, NPY, NPZ)
_BY_MEDIA_TYPE = {media_type: row for row in FORMATS for media_type in row.media_types}


def format_of(content_type: str) -> Format:
    """The format of a body. Raises UnsupportedMediaType that lists the known types, InvalidRequest if malformed."""
    media_type = parse_media_type(content_type)
    found = _BY_MEDIA_TYPE.get(media_type.essence)
    if found is None:
        raise UnsupportedMediaType(
            f"Content-Type '{media_type.essence}' is not supported, supported are: {supported_types()}"
        )
    if found.text:
        _check_charset(media_type)
    return found


def is_json(content_type: str) -> bool:
    """Whether a body of this type is JSON; true for a missing type."""
    try:
        return not content_type or parse_media_type(content_type).essence in JSON.media_types
    except InvalidRequest:
        return False


def format_for(accept: str | None, default: str = JSON.media_types[0], outputs: int = 1) -> str:
    """The media type for a response with `outputs` outputs; `default` if the header accepts anything.

    `encoder_of` gives its encoder. Raises NotAcceptable that lists the types that can hold the outputs.
    """
    known = [essence for essence, row in _BY_MEDIA_TYPE.items() if outputs == 1 or row is not NPY]
    chosen = choose(accept, [default, *known] if default in known else known)
    if chosen is None:
        raise NotAcceptable(f"none of '{(accept or '')[:100]}' can be sent, available are: {', '.join(known)}")
    return chosen


def encoder_of(media_type: str) -> Encode:
    """The encoder of a media type that `format_for` returned."""
    return _BY_MEDIA_TYPE[media_type].encode


def supported_types(also: Sequence[str] = ()) -> str:
    """The media types of the table, for an error text."""
    return ", ".join([*also, *_BY_MEDIA_TYPE])


def _check_charset(media_type: MediaType) -> None:
    charset = media_type.parameters.get("charset", "utf-8")
    if charset.lower() not in _CHARSETS:
        raise UnsupportedMediaType(
            f"charset '{charset[:60]}' of Content-Type '{media_type.essence}' is not supported, supported is: utf-8"
        )


# JSON of the v2 protocol is accepted under `application/json` and under every unknown type, as in Triton; AWS's
# examples rely on that. The same is true for objects with instances or with inputs by column. A bare array is accepted
# under an unknown type only if that is `application/octet-stream` or missing. Source: docs/spec/sagemaker.md sections
# B5 and C.


OCTETS = "application/octet-stream"
# Nearly all bodies of the v2 protocol begin so; this check is 2 µs faster than the pattern.
_V2_STARTS = (b'{"inputs":[{', b'{"inputs": [{')
_LONGEST_START = max(map(len, _V2_STARTS))
_V2_START = re.compile(rb'\s*\{\s*(?:"id"\s*:\s*"[^"\\]*"\s*,\s*)?' + V2_INPUTS.pattern)
_OBJECT = re.compile(rb"\s*\{")
_OBJECTS = (DocumentForm.INSTANCES, DocumentForm.COLUMNS)


class BodyKind(Enum):
    """The formats of bodies. V2 is JSON for the v2 protocol's codec, which also reports errors in it."""

    V2 = "v2"
    JSON = "json"
    CSV = "csv"
    JSONLINES = "jsonlines"
    NPY = "npy"
    NPZ = "npz"
    TENSOR = "tensor"
    OCTETS = "octets"

    @property
    def decode(self) -> Decode:
        """The decoder of every kind except V2."""
        return _DECODERS[self]


_KINDS = {
    JSON: BodyKind.JSON,
    CSV: BodyKind.CSV,
    JSONLINES: BodyKind.JSONLINES,
    NPY: BodyKind.NPY,
    NPZ: BodyKind.NPZ,
}
_DECODERS: dict[BodyKind, Decode] = {
    **{kind: row.decode for row, kind in _KINDS.items()},
    BodyKind.TENSOR: decode_raw,
    BodyKind.OCTETS: decode_octets,
}


def body_kind(content_type: str, body: Buffer, spec: ModelSpec, also: str) -> BodyKind:
    """The kind of a body for the model of `spec`.

    Raises UnsupportedMediaType that lists the supported types; `also` is the platform's own type for that list.
    """
    is_v2 = starts_as_v2(body)
    known = known_format(content_type)
    if known is JSON:
        return BodyKind.V2 if is_v2 or document_form(body) is DocumentForm.V2 else BodyKind.JSON
    if known is not None:
        if is_v2 and known.text and _is_one_line(body) and "inputs" not in spec.inputs:
            return BodyKind.V2
        return _KINDS[known]
    if _OBJECT.match(body) and V2_INPUTS.search(body):
        return BodyKind.V2
    essence = _essence(content_type)
    if known_format(essence) is not None:
        format_of(content_type)  # raises, because the charset is wrong
    form = document_form(body)
    if essence == OCTETS and len(spec.inputs) == 1:
        return BodyKind.TENSOR if form is DocumentForm.V2 else BodyKind.OCTETS
    if form in _OBJECTS or (form is DocumentForm.BARE and essence == OCTETS):
        return BodyKind.JSON
    supported = f"{supported_types((also,))}, and {OCTETS} for a model with one input"
    raise UnsupportedMediaType(f"Content-Type '{essence}' is not supported here, supported are: {supported}")


def is_plainly_v2(content_type: str, body: Buffer) -> bool:
    """Whether a quick check shows that the body is V2. It does for nearly all; `body_kind` finds the others."""
    return content_type == JSON.media_types[0] and starts_as_v2(body)


def starts_as_v2(body: Buffer) -> bool:
    """Whether a JSON document begins with members of the v2 protocol. If not, later members may still be of it."""
    return bytes(body[:_LONGEST_START]).startswith(_V2_STARTS) or _V2_START.match(body) is not None


@lru_cache(maxsize=256)
def known_format(content_type: str) -> Format | None:
    """The format of a body of this type; None for an unknown, malformed or missing type. Never raises."""
    try:
        return format_of(content_type)
    except InvalidRequest:
        return None


def _essence(content_type: str) -> str:
    """The media type; a missing one means octets (RFC 9110 section 8.3). Raises InvalidRequest if malformed."""
    return parse_media_type(content_type).essence if content_type else OCTETS


def _is_one_line(body: Buffer) -> bool:
    """Whether the body is one line: batch transform sends each line of a file under the type of the file."""
    return b"\n" not in bytes(body).strip()
