"""An InferenceResponse to the parts of an HTTP body: JSON, then the binary tensors, never joined.
Source: docs/spec/http.md section 4 (`outputs[].parameters`, `binary_data_output`) and section 6 "Response".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import orjson

from trident.core.config.spec import ModelSpec
from trident.core.frontend.classification import classified
from trident.core.http.json import ELEMENTS, LongAnswer, write_lenient
from trident.core.http.v2_json import json_values
from trident.core.http.v2_request import ResponsePlan, ResponseText
from trident.core.inference.response import NO_SEQUENCE, InferenceResponse, PackedOutputs
from trident.core.inference.tensors import Array, Buffer

_WORDS: Final = {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}
# In a longer text the search for a word takes longer than to look at all numbers (16,384 of them: 170 and 10 µs).
_SEARCHED: Final = 4096

# The parts of a body, and the length of its JSON if binary tensors follow it, else None.
Encoded = tuple[list[Buffer], int | None]


def encode_response(response: InferenceResponse, plan: ResponsePlan, spec: ModelSpec) -> Encoded:
    """The body of the response. Raises InvalidRequest for an output that cannot have the form asked for."""
    packed = response.outputs
    texts = plan.texts
    parameters = response.parameters
    if texts is not None and type(packed) is PackedOutputs and (not parameters or parameters is NO_SEQUENCE):
        key = (response.model_version, packed.layout, parameters is NO_SEQUENCE)
        try:
            text = texts[key]
        except KeyError:
            text = texts[key] = ResponseText.of(response, packed.layout, plan)
        if text is not None:
            parts = text.write(response.id, packed.content)
            if parts is not None:
                return parts, len(parts[0]) if len(parts) > 1 else None
    return _encode(response, plan, spec)


def _encode(response: InferenceResponse, plan: ResponsePlan, spec: ModelSpec) -> Encoded:
    document: dict[str, Any] = {}
    if response.id:
        document["id"] = response.id
    document["model_name"] = response.model_name
    document["model_version"] = str(response.model_version)
    if response.parameters:
        document["parameters"] = response.parameters
    entries: list[dict[str, Any]] = []
    document["outputs"] = entries
    binary: list[Buffer] = []
    long: LongAnswer | None = None
    for output in response.outputs:
        if output.name in plan.placed:
            entries.append({"name": output.name, "datatype": output.datatype, "shape": output.shape})
            continue
        is_binary, classes = plan.form_of(output.name)
        output = classified(output, classes, spec)
        entry: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.shape}
        if is_binary:
            content = output.content()
            size = len(content)
            entry["parameters"] = {"binary_data_size": size}
            if size:
                binary.append(content)
        else:
            array = output.array
            if array.size <= ELEMENTS:
                entry["data"] = json_values(array, output.datatype)
            else:
                long = long or LongAnswer()
                entry["data"] = long.add(array.reshape(-1), partial(json_values, datatype=output.datatype))
        entries.append(entry)
    text = _write(document, long)
    return [*text, *binary], sum(map(len, text)) if binary else None


def _write(document: dict[str, Any], long: LongAnswer | None) -> list[Buffer]:
    """The text in parts, which are one if no array is long."""
    try:
        return _texts(document, long, _write_finite)
    except (TypeError, _NonFinite):
        # Strings that are not UTF-8 are written byte for byte, as Triton does.
        return _texts(document, long, write_lenient)


def _texts(document: dict[str, Any], long: LongAnswer | None, write: Callable[[Any], bytes]) -> list[Buffer]:
    return [write(document)] if long is None else list(long.texts(document, write))


class _NonFinite(Exception):
    """A tensor holds NaN or an infinity, which orjson writes as null where Triton writes the word."""


def _write_finite(value: Any) -> bytes:
    text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    if (len(text) > _SEARCHED or b"null" in text) and _has_non_finite(value):
        if type(value) is not np.ndarray:
            raise _NonFinite
        return _with_words(text, value)
    return text


def _with_words(text: bytes, numbers: Array) -> bytes:
    """The text of a slice, with the words of `write_lenient`, which takes ten times as long, where orjson has null."""
    words = [_WORDS[repr(number)] for number in numbers[~np.isfinite(numbers)].tolist()]
    first, *rest = text.split(b"null")
    return b"".join([first, *[word + part for word, part in zip(words, rest, strict=True)]])


def _has_non_finite(value: Any) -> bool:
    """Whether `value`, a document or a part of a tensor, has NaN or an infinity in a tensor."""
    arrays = [entry.get("data") for entry in value["outputs"]] if type(value) is dict else [value]
    return any(isinstance(a, np.ndarray) and a.dtype.kind == "f" and not np.isfinite(a).all() for a in arrays)
