"""Many instances in one JSON document, decoded slice by slice.

A slice is an array of whole instances. Numbers for a model with one input are parsed directly into an array.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

from core.config.model_spec import ModelSpec
from core.http.payloads.error_location import instance_name
from core.http.payloads.json.document_form import DocumentForm
from core.http.payloads.json.instances import decode_instances
from core.http.payloads.json.number_array import parse_number_array
from core.http.payloads.json.number_instances import decode_numbers, is_one_instance, only_numbers
from core.http.payloads.json.text import parse_json
from core.http.payloads.json.values import rank_of
from core.http.payloads.payload import DecodedPayload, DecodeRules
from core.http.payloads.payload_slices import DecodedSlice, decode_slices
from core.http.slices.json_array import SlicedArray, slice_array
from core.http.slices.outline import outline_of
from core.http.slices.slicing import Slicing

LISTS, VALUES = "lists", "values"
_BRACKET = re.compile(rb"[ \t\r\n]*\[")
_BLANK = re.compile(rb"[ \t\r\n]*\Z")
_INSTANCES = re.compile(rb'"instances"[ \t\r\n]*:[ \t\r\n]*\[')


def decode_sliced_instances(
    body: memoryview, spec: ModelSpec, rules: DecodeRules, form: DocumentForm, slicing: Slicing
) -> tuple[DecodedPayload, dict[str, Any]] | None:
    """The payload of many instances, and the other members of the document; None for any other text, valid or not."""
    others: dict[str, Any] = {}
    if form is DocumentForm.BARE:
        array = _bare_array(body, slicing)
    elif form is DocumentForm.INSTANCES:
        array, others = _array_of_member(body, slicing)
    else:
        return None
    if array is None:
        return None
    is_bare = form is DocumentForm.BARE
    payload = decode_slices(array.texts(), lambda text: decode_slice(text, spec, rules, is_bare=is_bare))
    return None if payload is None else (payload, others)


def decode_slice(text: bytes, spec: ModelSpec, rules: DecodeRules, *, is_bare: bool = False) -> DecodedSlice:
    """The payload of an array of instances, and their form.

    None if it has to be decoded together with the others: in a bare array, because that may be one instance. Raises
    InvalidRequest.
    """
    kind = only_numbers(spec)
    found = parse_number_array(text, None, kind) if kind is not None else None
    if found is not None:
        rank = found[0].ndim
        payload = decode_numbers(found[0], spec, instance_name)
        if payload is not None:
            form = LISTS if rank > 1 else VALUES
            return None if is_bare and is_one_instance(rank, spec) else (payload, form)
    instances = parse_json(text)
    if is_bare and is_one_instance(rank_of(instances), spec):
        return None
    payload = decode_instances(instances, spec, rules, instance_name)
    return payload, form_of_instance(instances[0])


def form_of_instance(value: Any) -> Hashable:
    """What all instances of a body must have in common, besides what their arrays show."""
    if type(value) is dict:
        return tuple(value)
    return LISTS if type(value) is list else VALUES


def _bare_array(body: memoryview, slicing: Slicing) -> SlicedArray | None:
    found = _BRACKET.match(body)
    array = slice_array(body, found.end() - 1, slicing, whole_elements=True) if found else None
    return array if array is not None and array.is_long and _BLANK.match(body, array.end) else None


def _array_of_member(body: memoryview, slicing: Slicing) -> tuple[SlicedArray | None, dict[str, Any]]:
    outline = outline_of(body, _INSTANCES, slicing, whole_elements=True)
    if outline is None or type(outline.document) is not dict:
        return None, {}
    others: dict[str, Any] = outline.document
    array = outline.take(others.pop("instances", None))
    return (array if outline.is_taken() else None), others
