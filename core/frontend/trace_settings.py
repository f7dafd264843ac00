"""The trace settings as clients change them, over any protocol.

Source: docs/spec/trace-and-log.md section 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from core.errors import InvalidRequest, ModelNotFound, ModelNotReady, Unsupported
from core.frontend.log_settings import check_names
from core.observability.tracing.settings import CHANGEABLE, COUNT, FREQUENCY, LEVEL, LEVELS, OFF, RATE, UNLIMITED, Value

FILE = "trace_file"
# What clients see and cannot change: it is passed over.
_SHOWN = (
    "trace_mode",
    "url",
    "resource",
    "bsp_max_queue_size",
    "bsp_schedule_delay",
    "bsp_max_export_batch_size",
)
_INTEGER = re.compile(r"\s*([+-]?[0-9]+)")
_LONGEST_INTEGER = 20
_INT32 = range(-(2**31), 2**31)
_UINT32 = 2**32
_RANGES = {RATE: "[ 0, 4294967295 ]", COUNT: "[ -1, 2147483647 ]", FREQUENCY: "[ 0, 4294967295 ]"}

# What makes the texts of a level, or the text of a number, of the value that a client sent. Raises InvalidRequest.
AsTexts = Callable[[str, object], list[str]]
AsText = Callable[[str, object], str]


def check_ready(is_ready: Callable[[], bool], model: str) -> None:
    """Raise InvalidRequest for a model that is unknown or not ready, with one text for both, as Triton does."""
    try:
        if is_ready():
            return
    except (ModelNotFound, ModelNotReady):
        pass
    raise InvalidRequest(f"Request for unknown model : {model}", model=model)


def wanted_changes(
    wanted: Mapping[str, object], as_texts: AsTexts, as_text: AsText, before_count: str
) -> dict[str, Value | None]:
    """The changes that a client wants. A value of None clears a setting. Raises InvalidRequest and Unsupported, also
    for a setting that does not exist.

    `before_count` is what the
    protocol has between an invalid count and the text before it.
    """
    check_names("trace setting", wanted, (*CHANGEABLE, FILE, *_SHOWN))
    if FILE in wanted:
        raise Unsupported("trace file location can not be updated through network protocol")
    changes: dict[str, Value | None] = {}
    if LEVEL in wanted:
        given = wanted[LEVEL]
        levels = None if given is None else _levels(as_texts(LEVEL, given))
        if levels is not _NOTHING:
            changes[LEVEL] = levels
    for name in (RATE, COUNT, FREQUENCY):
        if name in wanted:
            given = wanted[name]
            changes[name] = None if given is None else _number(name, as_text(name, given), before_count)
    return changes


_NOTHING = ("",)


def _levels(texts: list[str]) -> tuple[str, ...]:
    """`_NOTHING` if the texts name no level at all."""
    if OFF in texts:
        if len(texts) > 1:
            raise InvalidRequest("Expect only one trace level 'OFF' is specified")
        return ()
    return tuple(level for level in LEVELS if level in texts) or _NOTHING


def _number(name: str, text: str, before_count: str) -> int:
    """The integer at the start of `text`, as Triton reads it."""
    found = _INTEGER.match(text)
    if found is None:
        raise InvalidRequest(f"Unable to parse '{name}', got: {text}")
    if len(found[1]) > _LONGEST_INTEGER or int(found[1]) not in _INT32:
        raise InvalidRequest(f"Unable to parse '{name}', value is out of range {_RANGES[name]}, got: {text}")
    number = int(found[1])
    if name != COUNT:
        return number % _UINT32
    if number < UNLIMITED:
        raise InvalidRequest(f"Unable to parse '{name}'. Expecting value >= -1, got:{before_count}{text}")
    return number
