"""Many instances in one JSON document, decoded slice by slice.

A slice is an array of whole instances. Numbers for a model with one input are parsed directly into an array.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import orjson

from core.config.model_spec import ModelSpec
from core.http.payloads.error_location import RowName
from core.http.payloads.json.document_form import DocumentForm
from core.http.payloads.json.instances import decode_instances
from core.http.payloads.json.number_array import parse_number_array
from core.http.payloads.json.number_instances import decode_numbers, is_one_instance, only_numbers
from core.http.payloads.json.text import parse_json
from core.http.payloads.json.values import rank_of
from core.http.payloads.payload import DecodedPayload, DecodeRules
from core.http.payloads.payload_slices import DecodedSlice, decode_slices
from core.http.payloads.text_rows import JsonRows
from core.http.slices.json_array import Fault, SlicedArray, slice_array
from core.http.slices.outline import Outline, outline_of
from core.http.slices.slicing import Slicing

LISTS, VALUES = "lists", "values"
_BRACKET = re.compile(rb"[ \t\r\n]*\[")
_EMPTY = b"[]"
# What follows a bare array is white space, or the first other byte of this many is an error.
_BEHIND = 1 << 16
_INSTANCES = re.compile(rb'"instances"[ \t\r\n]*:[ \t\r\n]*\[')


class SlicedInstances:
    """The instances of a document, in slices. `others` are its other members.

    `outline` has the array of them; its document is None if the text is no JSON.
    """

    def __init__(self, outline: Outline, array: SlicedArray, others: dict[str, Any], *, is_bare: bool) -> None:
        self.others = others
        self._outline = outline
        self._array = array
        self._is_bare = is_bare

    def decode(self, spec: ModelSpec, rules: DecodeRules) -> DecodedPayload | None:
        """The payload; None if the text has to be decoded as a whole. Raises InvalidRequest."""
        if self._outline.document is None:
            return None
        return decode_slices(
            self._array.texts(),
            JsonRows(spec),
            lambda text, name: decode_slice(text, spec, rules, name, is_bare=self._is_bare),
        )

    def fault(self) -> Fault | None:
        """The first thing that is wrong with the text; None if it is JSON, or if the slices do not tell."""
        return self._outline.fault()

    def is_json(self) -> bool:
        """Whether all slices were read, and the text around them is JSON."""
        return self._outline.document is not None and self._outline.is_read()


def sliced_instances(
    body: memoryview, form: DocumentForm, slicing: Slicing, *, whole_elements: bool = True
) -> SlicedInstances | None:
    """The instances of a document with many; None for any other text, valid or not.

    Without `whole_elements`, instances may be cut, so that the slices tell only what is not JSON.
    """
    if form is DocumentForm.BARE:
        outline = _bare_outline(body, slicing, whole_elements)
        return None if outline is None else SlicedInstances(outline, outline.arrays[0], {}, is_bare=True)
    if form is not DocumentForm.INSTANCES:
        return None
    outline = outline_of(body, _INSTANCES, slicing, whole_elements=whole_elements, may_be_broken=True)
    if outline is None:
        return None
    if outline.document is None:
        return SlicedInstances(outline, outline.arrays[0], {}, is_bare=False)
    if type(outline.document) is not dict:
        return None
    others: dict[str, Any] = outline.document
    array = outline.take(others.pop("instances", None))
    return SlicedInstances(outline, array, others, is_bare=False) if array is not None and outline.is_taken() else None


def decode_slice(
    text: bytes, spec: ModelSpec, rules: DecodeRules, row_name: RowName, *, is_bare: bool = False
) -> DecodedSlice:
    """The payload of an array of instances, and their form.

    None if it has to be decoded together with the others: in a bare array, because that may be one instance. Raises
    InvalidRequest.
    """
    kind = only_numbers(spec)
    found = parse_number_array(text, None, kind) if kind is not None else None
    if found is not None:
        rank = found[0].ndim
        payload = decode_numbers(found[0], spec, row_name)
        if payload is not None:
            form = LISTS if rank > 1 else VALUES
            return None if is_bare and is_one_instance(rank, spec) else (payload, form)
    instances = parse_json(text)
    if is_bare and is_one_instance(rank_of(instances), spec):
        return None
    payload = decode_instances(instances, spec, rules, row_name)
    return payload, form_of_instance(instances[0])


def form_of_instance(value: Any) -> Hashable:
    """What all instances of a body must have in common, besides what their arrays show."""
    if type(value) is dict:
        return tuple(value)
    return LISTS if type(value) is list else VALUES


def _bare_outline(body: memoryview, slicing: Slicing, whole_elements: bool) -> Outline | None:
    found = _BRACKET.match(body)
    array = None
    if found is not None:
        array = slice_array(body, found.end() - 1, slicing, whole_elements=whole_elements, may_be_cut=True)
    if array is None or not array.is_long:
        return None
    behind = bytes(body[array.end : array.end + _BEHIND])
    if array.is_cut:
        return Outline(b"", None, [array])
    try:
        document = orjson.loads(_EMPTY + behind)
        return Outline(b"", document, [array]) if len(behind) < _BEHIND else None
    except orjson.JSONDecodeError as error:
        fault = Fault(error.msg.partition(":")[0], array.end + error.pos - len(_EMPTY))
        return Outline(b"", None, [array], fault) if error.pos >= len(_EMPTY) else None
