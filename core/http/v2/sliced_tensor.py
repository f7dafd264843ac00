"""A tensor from a long JSON array in slices, converted slice by slice.

Source: docs/spec/http.md section 5.
"""

from __future__ import annotations

from core.http.slices.joined_array import joined_array
from core.http.slices.json_array import SlicedArray
from core.http.v2.json_document import read_slice
from core.http.v2.json_tensors import array_from_json, check_count
from core.inference.tensors import BYTES, Array, Datatype


def array_from_slices(content: SlicedArray, datatype: Datatype, count: int, input_name: str) -> Array:
    """As `array_from_json`. Raises InvalidRequest or ValueError.

    An error within a slice may have another text than the same error has in the whole array.
    """
    parts = [array_from_json(read_slice(text, datatype.name), datatype, None, input_name) for text in content.texts()]
    array = joined_array(parts)
    if datatype is not BYTES:
        check_count(array.size, count)
    return array
