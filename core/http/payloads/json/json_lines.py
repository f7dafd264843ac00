"""JSON Lines: one instance or one prediction on each line, in order.

Source: docs/spec/sagemaker.md section A6 (one record per line).
"""

from __future__ import annotations

from typing import Any

from core.config.model_spec import ModelSpec
from core.http.payloads.error_location import RowName, line_name
from core.http.payloads.json.encoder import prediction_rows, write_json
from core.http.payloads.json.instances import decode_instances
from core.http.payloads.json.number_array import parse_number_array
from core.http.payloads.json.number_instances import decode_numbers, only_numbers
from core.http.payloads.json.sliced_instances import LISTS, form_of_instance
from core.http.payloads.json.text import parse_json
from core.http.payloads.output_columns import OutputColumn, row_slices
from core.http.payloads.payload import DecodedPayload, DecodeRules
from core.http.payloads.payload_slices import DecodedSlice, decode_slices
from core.http.payloads.text_rows import LineRows
from core.http.slices.lines import line_slices, without_blank_lines
from core.inference.tensors import Buffer


def decode_jsonlines(body: Buffer, spec: ModelSpec, rules: DecodeRules) -> DecodedPayload:
    """Decode lines, ended by LF or CRLF, optional on the last. Blank lines are passed over and not counted.

    Raises InvalidRequest that names the line, from 1.
    """
    if rules.slicing is not None:
        texts = filter(None, map(without_blank_lines, line_slices(memoryview(body), rules.slicing)))
        payload = decode_slices(texts, LineRows(spec), lambda text, name: _decode_slice(text, spec, rules, name))
        if payload is not None:
            return payload
    text = without_blank_lines(bytes(body))
    payload = _decode_numbers(text, spec, line_name)
    if payload is not None:
        return payload
    return decode_instances(_instances(text, line_name), spec, rules, line_name)


def _decode_slice(text: bytes, spec: ModelSpec, rules: DecodeRules, row_name: RowName) -> DecodedSlice:
    payload = _decode_numbers(text, spec, row_name)
    if payload is not None:
        return payload, LISTS
    instances = _instances(text, row_name)
    return decode_instances(instances, spec, rules, row_name), form_of_instance(instances[0])


def _instances(text: bytes, row_name: RowName) -> list[Any]:
    lines = text.split(b"\n")
    if not lines[-1].strip():
        lines.pop()
    return [parse_json(line, row_name(index)) for index, line in enumerate(lines)]


def _decode_numbers(text: bytes, spec: ModelSpec, row_name: RowName) -> DecodedPayload | None:
    """The payload of lines that are flat arrays of numbers, for a model with one input; None for any other text."""
    kind = only_numbers(spec)
    text = text.removesuffix(b"\n")
    if kind is None or not text.startswith(b"["):
        return None
    # If this parses as an array of two dimensions with one row for each line, every line is exactly one array.
    joined = text.replace(b"]\n[", b"],[")
    if b"\n" in joined:
        return None
    found = parse_number_array(b"[" + joined + b"]", None, kind)
    if found is None or found[0].ndim != 2 or len(found[0]) != text.count(b"\n") + 1:
        return None
    return decode_numbers(found[0], spec, row_name)


def encode_jsonlines(columns: list[OutputColumn]) -> list[bytes]:
    return [b"\n".join([*map(write_json, prediction_rows(part)), b""]) for part in row_slices(columns)]
