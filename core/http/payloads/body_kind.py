"""The kind of a platform's request body, by its Content-Type, and by its text if that type may be wrong.

JSON of the v2 protocol is accepted under `application/json` and under every unknown type, as in Triton; AWS's examples
rely on that. The same is true for objects with instances or with inputs by column. A bare array is accepted under an
unknown type only if that is `application/octet-stream` or missing. Source: docs/spec/sagemaker.md sections B5 and C.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache

from core.config.model_spec import ModelSpec
from core.errors import InvalidRequest
from core.http.payloads.arrays.raw import decode_octets, decode_raw
from core.http.payloads.formats import (
    CSV,
    JSON,
    JSONLINES,
    NPY,
    NPZ,
    Decode,
    Format,
    UnsupportedMediaType,
    format_of,
    supported_types,
)
from core.http.payloads.json.document_form import V2_INPUTS, DocumentForm, document_form
from core.http.payloads.media_type import parse_media_type
from core.inference.tensors import Buffer

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
