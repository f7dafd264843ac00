"""The members of `parameters` that name the model, its version, the outputs and the request's id.

All other members are request parameters of the v2 protocol. The platform's own clients send every number as a double,
so 1.0 is accepted for 1.
Source: docs/spec/vertex.md section D point 4.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.config.json_fields import shown
from core.errors import InvalidRequest
from core.http.payloads.json.text import parse_json
from core.http.slices.outline import outline_of
from core.http.slices.slicing import SLICE, Slicing
from core.inference.tensors import Buffer

_LATEST = -1
_LAST_VERSION = 2**63 - 1
# A body without these members cannot name a model; a body with them is parsed to find out.
_PARAMETERS = re.compile(rb'"parameters"')
_NAMES_ONE = re.compile(rb'"(?:model|version)"')
_LONGEST_NAME = len('"parameters"')
_INSTANCES = re.compile(rb'"instances"[ \t\r\n]*:[ \t\r\n]*\[')
_QUOTE, _BACKSLASH = b'"\\'
_LARGE = 4096
_ESCAPED = re.compile(rb"\\u00")
# The parameters of the v2 protocol that are whole numbers.
_WHOLE = ("priority", "timeout", "sequence_id")


@dataclass(frozen=True, slots=True)
class Target:
    """`model` is "" for the default one, `version` -1 for the latest, `outputs` empty for all."""

    model: str = ""
    version: int = _LATEST
    outputs: tuple[str, ...] = ()
    id: str = ""
    stream: bool = False


DEFAULT_TARGET = Target()


def names_model(body: Buffer) -> bool:
    """Whether the document may name a model or a version, by a search of its text: False is certain, True is not."""
    if len(body) > _LARGE and _is_one_member(body):
        return False
    if not (_is_found(_PARAMETERS, body) and _is_found(_NAMES_ONE, body)):
        return _is_found(_ESCAPED, body)
    return True


def _is_found(pattern: re.Pattern[bytes], body: Buffer) -> bool:
    """Whether the pattern is in the text. It is searched part by part, as a search holds the interpreter's lock."""
    starts = range(0, len(body), SLICE)
    return any(pattern.search(body, start, start + SLICE + _LONGEST_NAME) is not None for start in starts)


def _is_one_member(body: Buffer) -> bool:
    """Whether the text has at most one string, as in a list of numbers under `instances`: 40 µs instead of 340."""
    text = np.frombuffer(body, np.uint8)
    return bool(np.count_nonzero(text == _QUOTE) <= 2 and not (text == _BACKSLASH).any())


def read_target(body: Buffer) -> Target:
    """The target that the document names, or the default target. Raises InvalidRequest."""
    outline = outline_of(memoryview(body), _INSTANCES, Slicing(), whole_elements=True) if len(body) > SLICE else None
    document = parse_json(body) if outline is None else outline.document
    parameters = document.get("parameters") if type(document) is dict else None
    return take_target(dict(parameters)) if type(parameters) is dict else DEFAULT_TARGET


def take_target(parameters: dict[str, Any]) -> Target:
    """Remove the target's members from `parameters` and return it. Raises InvalidRequest that names the member."""
    for name in _WHOLE:
        if name in parameters:
            parameters[name] = _whole(parameters[name])
    return Target(
        model=_text(parameters, "model", "the name of a model"),
        version=_version(parameters),
        outputs=_outputs(parameters),
        id=_text(parameters, "id", "a string"),
        stream=_flag(parameters, "stream"),
    )


def _text(parameters: dict[str, Any], name: str, expected: str) -> str:
    value = parameters.pop(name, "")
    if type(value) is not str:
        raise _wrong(name, expected, value)
    return value


def _flag(parameters: dict[str, Any], name: str) -> bool:
    value = parameters.pop(name, False)
    if type(value) is not bool:
        raise _wrong(name, "true or false", value)
    return value


def _whole(value: Any) -> Any:
    """An integer for a double that is a whole number; any other value as it is."""
    return int(value) if type(value) is float and value.is_integer() else value


def _version(parameters: dict[str, Any]) -> int:
    value = _whole(parameters.pop("version", _LATEST))
    if type(value) is str and value.isascii() and value.isdigit() and len(value) < len(str(_LAST_VERSION)):
        value = int(value)
    if type(value) is not int or not _LATEST <= value <= _LAST_VERSION:
        raise _wrong("version", "the number of a version", value)
    return value


def _outputs(parameters: dict[str, Any]) -> tuple[str, ...]:
    value = parameters.pop("outputs", [])
    names = [value] if type(value) is str else value
    if type(names) is not list or not all(type(name) is str for name in names):
        raise _wrong("outputs", "a list of names of outputs", value)
    return tuple(dict.fromkeys(names))


def _wrong(name: str, expected: str, value: object) -> InvalidRequest:
    return InvalidRequest(f"'parameters.{name}': expected {expected}, got {shown(value)}")
