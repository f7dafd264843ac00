"""Numbers of a wide type as a model's datatype: nothing wraps, nothing is cut off, nothing overflows unseen."""

from __future__ import annotations

import numpy as np

from core.config.golden.tensor import as_numbers, is_floating
from core.config.json_fields import shown
from core.errors import InvalidRequest
from core.http.payloads.error_location import ErrorLocation, mismatch
from core.inference.tensors import BY_NAME, BYTES, Array, Datatype, bytes_array

_BF16 = BY_NAME["BF16"]
_BF16_NAN = np.uint16(0x7FC0)


def expected_text(datatype: Datatype) -> str:
    """What an element of the datatype should be, for a message."""
    if datatype is BYTES:
        return 'a string or {"b64": "..."}'
    if is_floating(datatype):
        return f'a number that {datatype.name} can hold, "NaN", "Infinity" or "-Infinity"'
    if datatype.kind == "b":
        return "true or false"
    limits = np.iinfo(datatype.dtype)
    return f"an integer from {limits.min} to {limits.max} ({datatype.name})"


def as_datatype(wide: Array, datatype: Datatype, location: ErrorLocation) -> Array:
    """`wide` (booleans or numbers, in its shape) as the datatype; bit patterns for BF16.

    Fractions round to the nearest for the floating datatypes, and are refused for integers. A finite number that would
    become infinite is refused. Raises InvalidRequest that names the first element that does not fit.
    """
    kind = wide.dtype.kind
    if datatype is BYTES or (kind == "b") != (datatype.kind == "b") or kind not in "biuf":
        raise mismatch(location.at(), f"elements of {datatype.name}", f"an array of {wide.dtype}")
    if kind == "b":
        return wide
    if is_floating(datatype):
        return _as_floating(wide, datatype, location)
    limits = np.iinfo(datatype.dtype)
    if kind == "f":
        wide = wide.astype(np.float64, copy=False)
        # The upper limit as a power of two, which a double can hold where it cannot hold the limit itself.
        fits = (np.trunc(wide) == wide) & (wide >= float(limits.min)) & (wide < float(limits.max + 1))
    elif not wide.size or (int(wide.min()) >= limits.min and int(wide.max()) <= limits.max):
        return wide.astype(datatype.dtype, copy=False)
    else:
        # As objects, because numpy compares mixed integers of 64 bits as doubles.
        exact = wide.astype(object)
        fits = ((exact >= limits.min) & (exact <= limits.max)).astype(bool)
    if not fits.all():
        raise wrong_element(wide, int(np.argmin(fits)), datatype, location)
    return wide.astype(datatype.dtype)


def wrong_element(values: Array, index: int, datatype: Datatype, location: ErrorLocation) -> InvalidRequest:
    """The error for the element that is `index` in the row-major order of `values`."""
    got = shown(values.reshape(-1)[index].item())
    return mismatch(location.element(index, values.shape), expected_text(datatype), got)


def wide_integers(values: list[int]) -> Array | None:
    """A flat array of Python's integers in a type of 64 bits; None if there is none that holds them all."""
    for dtype in (np.int64, np.uint64):
        try:
            return np.array(values, dtype)
        except OverflowError:
            continue
    return None


def string_array(array: Array) -> Array:
    """An array of numpy's fixed-width text or bytes as one of `bytes` objects; text becomes UTF-8."""
    elements = array.reshape(-1).tolist()
    if array.dtype.kind == "U":
        elements = [element.encode() for element in elements]
    return bytes_array(elements, array.shape)


def _as_floating(wide: Array, datatype: Datatype, location: ErrorLocation) -> Array:
    with np.errstate(over="ignore"):
        if datatype is _BF16:
            narrow = _rounded_to_bf16(wide.astype(np.float32))
        else:
            narrow = wide.astype(datatype.dtype, copy=False)
    finite = np.isfinite(as_numbers(narrow, datatype))
    if not finite.all():
        overflows = ~finite & np.isfinite(wide)
        if overflows.any():
            raise wrong_element(wide, int(np.argmax(overflows)), datatype, location)
    return narrow


def _rounded_to_bf16(numbers: Array) -> Array:
    """FP32 to the nearest BF16, ties to even: half of the lowest bit that stays, less one if that bit is even."""
    bits = numbers.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # A NaN whose bits are all set would round into a number.
    return np.where(np.isnan(numbers), _BF16_NAN, rounded.astype(np.uint16))
