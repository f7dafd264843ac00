"""An InferenceResponse to a flat JSON object: a member for each output, the model, its version, and the parameters.

The responses of a stream are many and alike. What surrounds their values is written once.
Source: docs/spec/http.md section 9.
"""

from __future__ import annotations

from math import prod
from struct import Struct
from struct import error as StructError
from typing import Any

import numpy as np
import orjson

from core.http.json_writer import write_lenient
from core.http.v2.json_tensors import json_values
from core.inference.response import InferenceResponse, OutputTensor, ReceivedOutput
from core.inference.tensors import NUMBER_CODES, Shape

_CODES = {**NUMBER_CODES, "BOOL": "?"}
# numpy writes more numbers faster.
_MOST_NUMBERS = 64
_MOST_TEXTS = 16
_LENGTH = Struct("<I")

# The model, its version, the id, and the name, datatype and shape of each output.
_Form = tuple[str, int, str, tuple[tuple[str, str, Shape], ...]]


def encode_object(response: InferenceResponse) -> bytes:
    """The object, with its members in alphabetical order. Raises InvalidRequest for an output that JSON cannot carry.

    Of members with the same name, the first of these counts: id, model and version, a parameter, an output.
    """
    members: dict[str, Any] = {output.name: _value(output) for output in response.outputs}
    members.update(response.parameters or {})
    members.update(_own_members(response))
    ordered = dict(sorted(members.items()))
    try:
        text = orjson.dumps(ordered, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # strings that are not UTF-8
        return write_lenient(ordered)
    # NaN and infinities become null.
    return write_lenient(ordered) if b"null" in text and not all(map(_is_finite, members.values())) else text


class ObjectEncoder:
    """Writes the objects of one stream as `encode_object` does. One thread at a time."""

    __slots__ = ("_texts",)

    def __init__(self) -> None:
        self._texts: dict[_Form, _Text | None] = {}

    def __call__(self, response: InferenceResponse) -> bytes:
        """The object. Raises InvalidRequest for an output that JSON cannot carry."""
        if not response.parameters:
            outputs = response.outputs
            described = tuple([(output.name, output.datatype, output.shape) for output in outputs])
            form = (response.model_name, response.model_version, response.id, described)
            try:
                text = self._texts[form]
            except KeyError:
                text = self._text(form, response)
            if text is not None:
                try:
                    return text.write(outputs)
                except (ValueError, StructError):
                    pass  # the slow way knows what to do, or says what is wrong
        return encode_object(response)

    def _text(self, form: _Form, response: InferenceResponse) -> _Text | None:
        if len(self._texts) >= _MOST_TEXTS:
            self._texts.clear()
        text = self._texts[form] = _Text.of(response)
        return text


class _Text:
    """The text before each value and behind the last one. `places` are the outputs in the order of the text, each with
    the layout of its numbers, or None for one string."""

    __slots__ = ("_end", "_places")

    def __init__(self, places: list[tuple[bytes, int, Struct | None, bool]], end: bytes) -> None:
        self._places = places
        self._end = end

    @staticmethod
    def of(response: InferenceResponse) -> _Text | None:
        """The text of responses like this one; None if their values have to be looked at more closely."""
        own = _own_members(response)
        numbers: dict[str, tuple[int, Struct | None, bool]] = {}
        for index, output in enumerate(response.outputs):
            count = prod(output.shape)
            is_string = output.datatype == "BYTES" and count == 1
            is_known = is_string or (output.datatype in _CODES and count <= _MOST_NUMBERS)
            if type(output) is not ReceivedOutput or output.name in own or not is_known:
                return None
            struct = None if is_string else Struct(f"<{count}{_CODES[output.datatype]}")
            numbers[output.name] = index, struct, count == 1
        places: list[tuple[bytes, int, Struct | None, bool]] = []
        text = b""
        for name in sorted({*own, *numbers}):
            text += (b"," if text or places else b"{") + orjson.dumps(name) + b":"
            if name in numbers:
                places.append((text, *numbers[name]))
                text = b""
            else:
                text += orjson.dumps(own[name])
        return _Text(places, text + b"}")

    def write(self, outputs: Any) -> bytes:
        """The object with the values of `outputs`. Raises ValueError or struct.error if one has to be looked at."""
        pieces: list[bytes] = []
        for text, index, struct, is_one in self._places:
            content = outputs[index].content()
            if struct is None:
                if _LENGTH.unpack_from(content)[0] != len(content) - 4:
                    raise ValueError("not one string")
                value = orjson.dumps(str(content[4:], "utf-8"))
            else:
                numbers = struct.unpack(content)
                value = orjson.dumps(numbers[0] if is_one else numbers)
                if b"n" in value:
                    raise ValueError("NaN or an infinity")
            pieces += (text, value)
        pieces.append(self._end)
        return b"".join(pieces)


def _own_members(response: InferenceResponse) -> dict[str, str]:
    """The members of every response."""
    own = {"model_name": response.model_name, "model_version": str(response.model_version)}
    return {**own, "id": response.id} if response.id else own


def _value(output: OutputTensor) -> Any:
    """The values of an output as its member: one value stands alone."""
    values = json_values(output.array, output.datatype)
    return values[0] if len(values) == 1 else values


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float | np.ndarray | np.floating) or bool(np.isfinite(value).all())
