"""The table of formats: their media types, decoders and encoders.

Source: docs/spec/sagemaker.md section C "Content types".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.http.body import choose
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

# A name and a value, which may be quoted, of a parameter.
_PARAMETER = re.compile(r';\s*([^\s;=]+)\s*=\s*(?:"([^"]*)"|([^\s;"]+))\s*|;\s*')
_TYPE = re.compile(r"\s*([\w!#$&^.+-]+/[\w!#$&^.+-]+)\s*", re.ASCII)


@lru_cache(maxsize=256)
def parse_media_type(text: str) -> tuple[str, dict[str, str]]:
    """The `type/subtype` of a Content-Type header in lower case, and its parameters.

    Raises InvalidRequest for a malformed value or a range.
    """
    found = _TYPE.match(text)
    parameters: dict[str, str] = {}
    at = found.end() if found else 0
    while item := _PARAMETER.match(text, at):
        at = item.end()
        if item[1]:
            parameters[item[1].lower()] = item[2] or item[3] or ""
    if not found or at < len(text):
        raise InvalidRequest(
            f"the Content-Type header is not understood: {text[:100]!r}", hint="a form such as text/csv"
        )
    return found[1].lower(), parameters


SIZE = "json-header-size"


class BinaryType:
    """A platform's type of v2 bodies with binary tensors, whose parameter is the length of the JSON before them.

    `essence` is the media type without its parameter, `prefix` the text before the number."""

    def __init__(self, essence: str) -> None:
        self.essence = essence
        self.prefix = f"{essence};{SIZE}="

    def size_text(self, content_type: str) -> str | None:
        """The text of the length, valid or not; None for another type. Never raises.

        "" if the header contains the type but is malformed: the request is then refused for a missing length.
        """
        if content_type.startswith(self.prefix):
            return content_type[len(self.prefix) :]
        if self.essence not in content_type.lower():
            return None
        try:
            essence, parameters = parse_media_type(content_type)
        except InvalidRequest:
            return ""
        return parameters.get(SIZE, "") if essence == self.essence else ""

    def missing_size(self) -> InvalidRequest:
        """The error for a request of this type without a length."""
        return InvalidRequest(f"Content-Type must be '{self.prefix}N', N being the length of the JSON in bytes")

    def of(self, json_size: int) -> str:
        return f"{self.prefix}{json_size}"


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
# Two of bodies whose type does not describe their content; the answers are JSON.
OCTETS = "application/octet-stream"
TENSOR = Format((OCTETS,), decode_raw, encode_json, text=False)
JSON_OR_TENSOR = Format((OCTETS,), decode_octets, encode_json, text=False)

# In the order of preference for `*/*`.
FORMATS = (JSON, CSV, JSONLINES, NPY, NPZ)
_BY_MEDIA_TYPE = {media_type: row for row in FORMATS for media_type in row.media_types}


def format_of(content_type: str) -> Format:
    """The format of a body. Raises UnsupportedMediaType that lists the known types, InvalidRequest if malformed."""
    essence, parameters = parse_media_type(content_type)
    found = _BY_MEDIA_TYPE.get(essence)
    if found is None:
        raise UnsupportedMediaType(f"Content-Type '{essence}' is not supported, supported are: {supported_types()}")
    charset = parameters.get("charset", "utf-8")
    if found.text and charset.lower() not in _CHARSETS:
        raise UnsupportedMediaType(
            f"charset '{charset[:60]}' of Content-Type '{essence}' is not supported, supported is: utf-8"
        )
    return found


def is_json(content_type: str) -> bool:
    """Whether a body of this type is JSON; true for a missing type."""
    return not content_type or known_format(content_type) is JSON


def format_for(accept: str | None, default: str = JSON.media_types[0], outputs: int = 1) -> str:
    """The media type for a response with `outputs` outputs; `default` if the header accepts anything.

    `encoder_of` gives its encoder. Raises NotAcceptable that lists the types that can hold the outputs.
    """
    known = [essence for essence, row in _BY_MEDIA_TYPE.items() if outputs == 1 or row is not NPY]
    chosen = choose(accept, (default, *known) if default in known else tuple(known))
    if chosen is None:
        raise NotAcceptable(f"none of '{(accept or '')[:100]}' can be sent, available are: {', '.join(known)}")
    return chosen


def encoder_of(media_type: str) -> Encode:
    """The encoder of a media type that `format_for` returned."""
    return _BY_MEDIA_TYPE[media_type].encode


def supported_types(also: Sequence[str] = ()) -> str:
    """The media types of the table, for an error text."""
    return ", ".join([*also, *_BY_MEDIA_TYPE])


# JSON of the v2 protocol is accepted under `application/json` and under every unknown type, as in Triton; AWS's
# examples rely on that. The same is true for objects with instances or with inputs by column. A bare array is accepted
# under an unknown type only if that is `application/octet-stream` or missing. Source: docs/spec/sagemaker.md sections
# B5 and C.


# Nearly all bodies of the v2 protocol begin so; this check is 2 µs faster than the pattern.
_V2_STARTS = (b'{"inputs":[{', b'{"inputs": [{')
_LONGEST_START = max(map(len, _V2_STARTS))
_V2_START = re.compile(rb'\s*\{\s*(?:"id"\s*:\s*"[^"\\]*"\s*,\s*)?' + V2_INPUTS.pattern)
_OBJECT = re.compile(rb"\s*\{")
_OBJECTS = (DocumentForm.INSTANCES, DocumentForm.COLUMNS)


def body_format(content_type: str, body: Buffer, spec: ModelSpec, also: str) -> Format | None:
    """The format of a body for the model of `spec`; None for JSON of the v2 protocol, whose codec also reports errors.

    Raises UnsupportedMediaType that lists the supported types; `also` is the platform's own type for that list.
    """
    is_v2 = starts_as_v2(body)
    known = known_format(content_type)
    if known is JSON:
        return None if is_v2 or document_form(body) is DocumentForm.V2 else JSON
    if known is not None:
        if is_v2 and known.text and _is_one_line(body) and "inputs" not in spec.inputs:
            return None
        return known
    if _OBJECT.match(body) and V2_INPUTS.search(body):
        return None
    # A missing type means octets (RFC 9110 section 8.3).
    essence = parse_media_type(content_type)[0] if content_type else OCTETS
    if known_format(essence) is not None:
        format_of(content_type)  # raises, because the charset is wrong
    form = document_form(body)
    if essence == OCTETS and len(spec.inputs) == 1:
        return TENSOR if form is DocumentForm.V2 else JSON_OR_TENSOR
    if form in _OBJECTS or (form is DocumentForm.BARE and essence == OCTETS):
        return JSON
    supported = f"{supported_types((also,))}, and {OCTETS} for a model with one input"
    raise UnsupportedMediaType(f"Content-Type '{essence}' is not supported here, supported are: {supported}")


def is_plainly_v2(content_type: str, body: Buffer) -> bool:
    """Whether a quick check shows that the body is v2 JSON. It does for nearly all; `body_format` finds the others."""
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


def _is_one_line(body: Buffer) -> bool:
    """Whether the body is one line: batch transform sends each line of a file under the type of the file."""
    return b"\n" not in bytes(body).strip()
