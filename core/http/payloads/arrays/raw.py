"""Raw bytes as the only input of a model: concatenated instances, or one string.

They are not in the table of formats, because `application/octet-stream` does not describe its content: adapters try all
formats first.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from core.config.model_spec import ModelSpec
from core.errors import InvalidRequest
from core.http.payloads.error_location import mismatch
from core.http.payloads.instance_signature import instance_signature, single_input
from core.http.payloads.json.decoder import decode_json
from core.http.payloads.json.document_form import DocumentForm, document_form
from core.http.payloads.json.text import parse_json
from core.http.payloads.json.values import raw_row
from core.http.payloads.payload import DecodedPayload, DecodeRules
from core.inference.tensors import BYTES, Buffer, bytes_array, element_count


def decode_octets(body: Buffer, spec: ModelSpec, rules: DecodeRules) -> DecodedPayload:
    """Decode JSON, which many clients send under this type, or else raw bytes as `decode_raw`. Raises InvalidRequest.

    For a string input only an object with instances or inputs counts as JSON, because other JSON may be the string.
    """
    (expected,) = spec.inputs.values()
    if expected.datatype is BYTES and document_form(body) is DocumentForm.BARE:
        return decode_raw(body, spec, rules)
    try:
        return decode_json(body, spec, rules)
    except InvalidRequest:
        # Raw numbers can begin with the byte of a bracket, so only valid JSON gets the JSON decoder's error.
        if _is_meant(body):
            raise
    return decode_raw(body, spec, rules)


def decode_raw(body: Buffer, spec: ModelSpec, rules: DecodeRules) -> DecodedPayload:
    """Decode little-endian, row-major elements: one or more instances, one if a dim is variable, one string for BYTES.

    Raises InvalidRequest for a number of bytes that does not fit.
    """
    single_input(spec, "a body of raw bytes")
    signature = instance_signature(spec, None)
    ((name, expected),) = signature.inputs.items()
    if not len(body):
        raise InvalidRequest(f"the body is empty: expected the bytes of input '{name}'")
    if expected.datatype is BYTES:
        if any(dim not in (1, -1) for dim in expected.dims):
            raise InvalidRequest(f"raw bytes are one string, input '{name}' needs {element_count(expected.dims)}")
        array = bytes_array([bytes(body)], (1,) * (1 + len(expected.dims)))
        return DecodedPayload(arrays={name: array}, count=1, stacked=signature.stacked)
    size = element_count(expected.dims) * expected.datatype.size
    if -1 in expected.dims:
        array = raw_row(memoryview(body), expected, f"input '{name}'")[np.newaxis]
    elif size and len(body) % size == 0:
        rows = replace(expected, dims=(len(body) // size, *expected.dims), model_dims=None)
        array = raw_row(memoryview(body), rows, f"input '{name}'")
    else:
        raise mismatch(f"input '{name}'", f"a multiple of {size} bytes", str(len(body)))
    return DecodedPayload(arrays={name: array}, count=len(array), stacked=signature.stacked)


def _is_meant(text: Buffer) -> bool:
    """Whether the text is valid JSON in one of the forms of a request."""
    try:
        document = parse_json(text)
    except InvalidRequest:
        return False
    return type(document) is list or (
        type(document) is dict and not document.keys().isdisjoint(("instances", "inputs"))
    )
