"""A payload decoded slice by slice, and joined.

Each slice is decoded as if it were the body. The slices give the payload of the whole body if they agree in everything
that a decoder compares between the rows of one body.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from core.errors import InvalidRequest
from core.http.payloads.payload import DecodedPayload
from core.http.slices.joined_array import joined_array

# The payload of a slice, and the form of its rows, in which all rows of a body must agree; None: decode the whole body.
DecodedSlice = tuple[DecodedPayload, Hashable] | None


def decode_slices(texts: Iterable[bytes], decode: Callable[[bytes], DecodedSlice]) -> DecodedPayload | None:
    """The joined payload; None if the whole body must be decoded: a slice has an error, or does not fit the first one.

    The decoder of whole bodies finds the same error again, and its place.
    """
    parts: list[DecodedPayload] = []
    agreed: Hashable = None
    for text in texts:
        try:
            decoded = decode(text)
        except InvalidRequest:
            return None
        if decoded is None or decoded[0].rows is not None:
            return None
        form = (*_form(decoded[0]), decoded[1])
        if parts and form != agreed:
            return None
        agreed = form
        parts.append(decoded[0])
    return _joined(parts) if parts else None


def _form(payload: DecodedPayload) -> tuple[Hashable, ...]:
    shapes = tuple((name, array.shape[1:]) for name, array in payload.arrays.items())
    return shapes, payload.stacked, payload.count is None


def _joined(parts: list[DecodedPayload]) -> DecodedPayload | None:
    first = parts[0]
    if first.count is None:
        return None
    arrays = {name: joined_array([part.arrays[name] for part in parts]) for name in first.arrays}
    return DecodedPayload(arrays=arrays, count=sum(part.count or 0 for part in parts), stacked=first.stacked)
