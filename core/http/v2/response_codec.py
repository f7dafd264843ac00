"""An InferenceResponse to the parts of an HTTP body: JSON, then the binary tensors, never joined.

Source: docs/spec/http.md section 6 "Response".
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson

from core.config.model_spec import ModelSpec
from core.frontend.classification import classified
from core.http.v2.json_tensors import json_values
from core.http.v2.response_plan import ResponsePlan, TextKey
from core.http.v2.response_text import ResponseText
from core.inference.response import InferenceResponse, PackedOutputs
from core.inference.tensors import Buffer


class EncodedResponse:
    """`parts[0]` is the JSON; `json_length` is its size if binary tensors follow it, else None."""

    __slots__ = ("json_length", "parts")

    def __init__(self, parts: list[Buffer], json_length: int | None) -> None:
        self.parts = parts
        self.json_length = json_length


def encode_response(response: InferenceResponse, plan: ResponsePlan, spec: ModelSpec) -> EncodedResponse:
    """Raises InvalidRequest for an output that cannot be had in the form asked for."""
    packed = response.outputs
    if type(packed) is PackedOutputs and plan.texts is not None and not response.parameters:
        parts = _known_parts(response, packed, plan, plan.texts)
        if parts is not None:
            return EncodedResponse(parts, len(parts[0]) if len(parts) > 1 else None)
    return _encode(response, plan, spec)


def _known_parts(
    response: InferenceResponse, packed: PackedOutputs, plan: ResponsePlan, texts: dict[TextKey, ResponseText | None]
) -> list[Buffer] | None:
    """The body, if it is like that of an earlier response but for the id and the numbers."""
    key = (response.model_version, packed.layout)
    try:
        text = texts[key]
    except KeyError:
        text = ResponseText.of(response, packed.layout, plan)
        plan.remember(key, text)
    return None if text is None else text.write(response.id, packed.content)


def _encode(response: InferenceResponse, plan: ResponsePlan, spec: ModelSpec) -> EncodedResponse:
    document: dict[str, Any] = {}
    if response.id:
        document["id"] = response.id
    document["model_name"] = response.model_name
    document["model_version"] = str(response.model_version)
    if response.parameters:
        document["parameters"] = response.parameters
    entries: list[dict[str, Any]] = []
    document["outputs"] = entries
    parts: list[Buffer] = [b""]
    has_binary = False
    for output in response.outputs:
        binary, classes = plan.form_of(output.name)
        output = classified(output, classes, spec)
        entry: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.shape}
        if binary:
            content = output.content()
            size = len(content)
            entry["parameters"] = {"binary_data_size": size}
            if size:
                parts.append(content)
                has_binary = True
        else:
            entry["data"] = json_values(output.array, output.datatype)
        entries.append(entry)
    parts[0] = text = _write(document)
    return EncodedResponse(parts, len(text) if has_binary else None)


def _write(document: dict[str, Any]) -> bytes:
    try:
        text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        # Strings that are not UTF-8: written byte for byte, as Triton does.
        return _write_lenient(document)
    if b"null" in text and _has_no_number(document):
        return _write_lenient(document)
    return text


def _has_no_number(document: dict[str, Any]) -> bool:
    """Whether a tensor holds NaN or an infinity, which orjson writes as null where Triton writes the word."""
    return any(
        isinstance(content, np.ndarray) and content.dtype.kind == "f" and not np.isfinite(content).all()
        for content in (entry.get("data") for entry in document["outputs"])
    )


def _write_lenient(document: dict[str, Any]) -> bytes:
    text = json.dumps(document, default=np.ndarray.tolist, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogateescape")
