"""The form of a JSON document, found by a search of its text.

Source: docs/spec/vertex.md section D points 1 to 4; docs/spec/sagemaker.md section C "Auto-wrapping".
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

from core.http.payloads.json.text import parse_json
from core.inference.tensors import Buffer

_FIRST = re.compile(rb'\s*(?:(\[)|\{\s*("instances"\s*:)?)')
_INSTANCES = re.compile(rb'"instances"')
_INPUTS_KEY = re.compile(rb'"inputs"')
# The list has objects or is empty, or the text ends.
V2_INPUTS = re.compile(rb'"inputs"\s*:\s*\[\s*(?:[{\]]|\Z)')
_COLUMNS = re.compile(rb'"inputs"\s*:\s*(?:\{|(\[)\s*[^\s{\]])')


class DocumentForm(Enum):
    """The form of a document at its outermost level. The value describes it."""

    INSTANCES = "an object with 'instances': one value or object for each"
    BARE = "an array of instances, or one instance that is an array"
    COLUMNS = "an object with 'inputs' that is an object, a whole tensor by input name, or the tensor of the only input"
    V2 = "anything else: the v2 protocol's reader says what is wrong with it"


def document_form(body: Buffer) -> DocumentForm:
    """The form of the document, from a search of its text. `instances` takes precedence over `inputs`."""
    first = _FIRST.match(body)
    if not first:
        return DocumentForm.V2
    if first[1]:
        return DocumentForm.BARE
    if first[2]:
        return DocumentForm.INSTANCES
    if _INSTANCES.search(body) and (not _INPUTS_KEY.search(body) or "instances" in _keys(body)):
        return DocumentForm.INSTANCES
    columns = _COLUMNS.search(body)
    if not columns or (columns[1] and V2_INPUTS.search(body)):
        return DocumentForm.V2
    return DocumentForm.COLUMNS


def _keys(body: Buffer) -> Any:
    document = parse_json(body)
    return document.keys() if type(document) is dict else ()
