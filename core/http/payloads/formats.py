"""The table of formats: their media types, decoders and encoders.

Source: docs/spec/sagemaker.md section C "Content types".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.config.model_spec import ModelSpec
from core.errors import InvalidRequest
from core.http.payloads.arrays.npy import decode_npy, encode_npy
from core.http.payloads.arrays.npz import decode_npz, encode_npz
from core.http.payloads.csv.decoder import decode_csv
from core.http.payloads.csv.encoder import encode_csv
from core.http.payloads.json.decoder import decode_json
from core.http.payloads.json.encoder import encode_json
from core.http.payloads.json.json_lines import decode_jsonlines, encode_jsonlines
from core.http.payloads.media_type import MediaType, choose, parse_media_type
from core.http.payloads.output_columns import OutputColumn
from core.http.payloads.payload import DecodedPayload, DecodeRules
from core.inference.tensors import Buffer

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
