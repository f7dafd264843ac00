"""Conversion of numbers to a model's datatype without wrapping, truncation or silent overflow."""

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
    """A description of the elements of the datatype, for an error text."""
    if datatype is BYTES:
        return 'a string or {"b64": "..."}'
    if is_floating(datatype):
        return f'a number that {datatype.name} can hold, "NaN", "Infinity" or "-Infinity"'
    if datatype.kind == "b":
        return "true or false"
    limits = np.iinfo(datatype.dtype)
    return f"an integer from {limits.min} to {limits.max} ({datatype.name})"


def as_datatype(wide: Array, datatype: Datatype, location: ErrorLocation) -> Array:
    """Convert `wide`, booleans or numbers of any shape, to the datatype; BF16 becomes bit patterns.

    Fractions are rounded to nearest for floating-point datatypes and refused for integers. A finite number that would
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
        # The upper limit plus one is a power of two, which a double holds exactly; the limit itself may not be.
        fits = (np.trunc(wide) == wide) & (wide >= float(limits.min)) & (wide < float(limits.max + 1))
    elif not wide.size or (int(wide.min()) >= limits.min and int(wide.max()) <= limits.max):
        return wide.astype(datatype.dtype, copy=False)
    else:
        # As objects, because numpy compares int64 with uint64 as doubles.
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
    """A flat array of Python integers as int64 or uint64; None if neither holds all of them."""
    for dtype in (np.int64, np.uint64):
        try:
            return np.array(values, dtype)
        except OverflowError:
            continue
    return None


def string_array(array: Array) -> Array:
    """Convert an array of numpy's fixed-width text or bytes to `bytes` objects; text becomes UTF-8."""
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
    """Round FP32 to the nearest BF16, ties to even: add half of the lowest kept bit, less one if that bit is even."""
    bits = numbers.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # Rounding would turn a NaN whose bits are all set into a number.
    return np.where(np.isnan(numbers), _BF16_NAN, rounded.astype(np.uint16))
