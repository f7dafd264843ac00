"""Decodes JSON documents with instances.

Numbers for a model with one input are parsed directly into an array; other documents are parsed into Python values.
Source: docs/spec/vertex.md section D points 1 to 4; docs/spec/sagemaker.md section C "Auto-wrapping".
"""

from __future__ import annotations

from typing import Any

from core.config.json_fields import shown
from core.config.model_spec import ModelSpec
from core.errors import InvalidRequest
from core.http.payloads.arrays.inputs import common_count
from core.http.payloads.error_location import ErrorLocation, instance_name
from core.http.payloads.instance_signature import check_names, single_input
from core.http.payloads.json.document_form import DocumentForm, document_form
from core.http.payloads.json.instances import decode_instances
from core.http.payloads.json.number_array import parse_number_array
from core.http.payloads.json.number_instances import decode_numbers, is_one_instance, only_numbers
from core.http.payloads.json.sliced_instances import sliced_instances
from core.http.payloads.json.text import error_in_slices, parse_json
from core.http.payloads.json.values import column_array, rank_of
from core.http.payloads.payload import DecodedPayload, DecodeRules
from core.http.slices.json_array import Fault
from core.inference.tensors import Array, Buffer

# From this number of bytes on the parser for number arrays is faster.
_LARGE = 1024
# `signature_name` is TensorFlow Serving's and is ignored: a model here has one signature.
_MEMBERS = {
    DocumentForm.INSTANCES: ("instances", "parameters", "signature_name"),
    DocumentForm.COLUMNS: ("inputs", "parameters", "signature_name"),
}


def decode_json(body: Buffer, spec: ModelSpec, rules: DecodeRules) -> DecodedPayload:
    """Decode a document. Raises InvalidRequest that names the instance, the input and the element."""
    form = document_form(body)
    payload = _decode_slices(body, spec, rules, form)
    if payload is None and len(body) > _LARGE:
        payload = _decode_numbers(body, spec, form)
    if payload is None:
        payload = _decode_values(body, spec, rules, form)
    payload.form = form
    return payload


def _decode_slices(body: Buffer, spec: ModelSpec, rules: DecodeRules, form: DocumentForm) -> DecodedPayload | None:
    """The payload of many instances, if the rules allow slices; None for a document that has to be read as a whole."""
    slicing = rules.slicing
    if slicing is None:
        return None
    text = memoryview(body)
    sliced = sliced_instances(text, form, slicing)
    payload: DecodedPayload | None = None
    fault: Fault | None = None
    if sliced is not None:
        found: InvalidRequest | None = None
        try:
            parameters = _parameters(sliced.others, form)
            payload = sliced.decode(spec, rules)
        except InvalidRequest as error:
            found = error
        else:
            if payload is not None:
                payload.parameters = parameters
                return payload
        # The syntax of the whole text is judged before its content.
        fault = sliced.fault()
        if sliced.is_json():
            if found is not None:
                raise found
            return None
    if sliced is None:
        # One element may have taken in the others, because its bracket is missing.
        sliced = sliced_instances(text, form, slicing, whole_elements=False)
        fault = None if sliced is None else sliced.fault()
    error_ = error_in_slices(text, fault, slicing)
    if error_ is not None:
        raise error_
    return None


def _decode_numbers(body: Buffer, spec: ModelSpec, form: DocumentForm) -> DecodedPayload | None:
    """The payload of plain numbers for a model with one input; None for any other document, valid or not."""
    kind = only_numbers(spec)
    if kind is None or form not in (DocumentForm.INSTANCES, DocumentForm.BARE):
        return None
    found = parse_number_array(body, "instances" if form is DocumentForm.INSTANCES else None, kind)
    if found is None:
        return None
    wide, others = found
    parameters = _parameters(others, form)
    if form is DocumentForm.BARE and is_one_instance(wide.ndim, spec):
        wide = wide.reshape(1, *wide.shape)
    payload = decode_numbers(wide, spec, instance_name)
    if payload is not None:
        payload.parameters = parameters
    return payload


def _decode_values(body: Buffer, spec: ModelSpec, rules: DecodeRules, form: DocumentForm) -> DecodedPayload:
    document = parse_json(body)
    if form is DocumentForm.BARE:
        instances = [document] if is_one_instance(rank_of(document), spec) else document
        return decode_instances(instances, spec, rules, instance_name)
    if form is DocumentForm.V2 or _MEMBERS[form][0] not in document:
        raise InvalidRequest("expected a JSON object with 'instances', or an array of instances")
    content = document.pop(_MEMBERS[form][0])
    parameters = _parameters(document, form)
    if form is DocumentForm.COLUMNS:
        payload = _decode_columns(content, spec)
    elif type(content) is list:
        payload = decode_instances(content, spec, rules, instance_name)
    else:
        raise InvalidRequest(f"'instances': expected a list of instances, got {shown(content)}")
    payload.parameters = parameters
    return payload


def _parameters(others: dict[str, Any], form: DocumentForm) -> dict[str, Any]:
    for key in others:
        if key not in _MEMBERS[form]:
            known = ", ".join(f"'{name}'" for name in _MEMBERS[form])
            raise InvalidRequest(f"unknown member '{key[:60]}' of the request, known are {known}")
    parameters = others.get("parameters")
    if parameters is None:
        return {}
    if type(parameters) is not dict:
        raise InvalidRequest(f"'parameters': expected an object, got {shown(parameters)}")
    return parameters


def _decode_columns(content: Any, spec: ModelSpec) -> DecodedPayload:
    """Decode whole tensors by input name (TensorFlow Serving's columnar format), with a batch dimension if the model
    has one. The tensor of an only input may be given without its name.
    """
    if type(content) is list:
        content = {single_input(spec, "a tensor without a name under 'inputs'").name: content}
    if type(content) is not dict:
        raise InvalidRequest(f"'inputs': expected an object with a tensor by input name, got {shown(content)}")
    check_names(content, spec, "'inputs'")
    arrays: dict[str, Array] = {}
    if spec.max_batch_size == 0:
        for name, value in content.items():
            array = column_array([value], spec.inputs[name], ErrorLocation(_whole, name))
            arrays[name] = array.reshape(array.shape[1:])
        return DecodedPayload(arrays=arrays, count=None, stacked=False)
    for name, value in content.items():
        if type(value) is not list or not value:
            raise InvalidRequest(f"input '{name}': expected a list of at least one row, got {shown(value)}")
        arrays[name] = column_array(value, spec.inputs[name], ErrorLocation(_row, name))
    return DecodedPayload(arrays=arrays, count=common_count(arrays), stacked=True)


def _row(index: int) -> str:
    return f"row {index}"


def _whole(_index: int) -> str:
    return "the tensor"
