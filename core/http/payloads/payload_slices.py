"""A payload decoded slice by slice, and joined.

Each slice is decoded as if it were the body. The slices give the payload of the whole body if they agree in everything
that a decoder compares between the rows of one body. Otherwise `WrongRows` finds the error of the body.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from core.errors import InvalidRequest
from core.http.payloads.error_location import RowName
from core.http.payloads.payload import DecodedPayload
from core.http.payloads.wrong_rows import Rows, WrongRows
from core.http.slices.joined_array import joined_array

# The payload of a slice, and the form of its rows, in which all rows of a body must agree; None: decode the whole body.
DecodedSlice = tuple[DecodedPayload, Hashable] | None
# Decodes a slice, whose rows have these names in errors. Raises InvalidRequest.
DecodeSlice = Callable[[bytes, RowName], DecodedSlice]


def decode_slices(texts: Iterable[bytes], rows: Rows, decode: DecodeSlice) -> DecodedPayload | None:
    """The joined payload; None if the whole body must be decoded, because the slices do not tell what is in it.

    Raises the InvalidRequest that the decoder of whole bodies would raise.
    """
    parts: list[DecodedPayload] = []
    wrong: WrongRows | None = None
    agreed: Hashable = None
    first_slice, first, count, is_plain = b"", b"", 0, True
    for text in texts:
        is_plain = is_plain and rows.is_plain(text)
        found = _decoded(text, rows, decode)
        if not first_slice:
            first_slice = text
            agreed = None if found is None else found[1]
        if found is not None and found[1] == agreed:
            parts.append(found[0])
            count += found[0].count or 0
            continue
        if wrong is None:
            first = rows.first(first_slice)
            wrong = WrongRows(rows, first, decode)
            if text is first_slice and first:
                # None: the first row, with which all have to agree, is wrong itself.
                row = _decoded(first, rows, decode)
                agreed = None if row is None else row[1]
        added = rows.count(text)
        if not (first and added and is_plain and wrong.add(text, count, added)):
            return None
        count += added
    if wrong is None:
        return _joined(parts) if parts else None
    if wrong.error is not None and is_plain:
        raise wrong.error
    return None


def _decoded(text: bytes, rows: Rows, decode: DecodeSlice) -> tuple[DecodedPayload, Hashable] | None:
    """The payload of a slice and what it must have in common with the others; None if it has an error."""
    try:
        decoded = decode(text, rows.name)
    except InvalidRequest:
        return None
    if decoded is None or decoded[0].rows is not None or decoded[0].count is None:
        return None
    return decoded[0], (*_form(decoded[0]), decoded[1])


def _form(payload: DecodedPayload) -> tuple[Hashable, ...]:
    shapes = tuple((name, array.shape[1:]) for name, array in payload.arrays.items())
    return shapes, payload.stacked


def _joined(parts: list[DecodedPayload]) -> DecodedPayload:
    first = parts[0]
    arrays = {name: joined_array([part.arrays[name] for part in parts]) for name in first.arrays}
    return DecodedPayload(arrays=arrays, count=sum(part.count or 0 for part in parts), stacked=first.stacked)
