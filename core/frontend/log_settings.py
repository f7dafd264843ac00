"""The settings of the log as clients read and change them.

Source: docs/spec/trace-and-log.md section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from core.errors import InvalidRequest, Unsupported
from core.observability.logging import FORMATS, LogLevels, log_levels, log_options

_FILE = "log_file"
_FORMAT = "log_format"
_SWITCHES = {"log_info": "info", "log_warning": "warning", "log_error": "error"}
_LEVEL = "log_verbose_level"
# Triton applies the settings of a call in this order, and those before an invalid one stay applied.
ORDER = (_FILE, *_SWITCHES, _LEVEL, _FORMAT)
_HIGHEST_LEVEL = 2**32 - 1

# What makes a setting of the value that a client sent, by the kinds of value. Raises InvalidRequest.
AsBool = Callable[[str, object], bool]
AsInteger = Callable[[str, object], int]
AsText = Callable[[str, object], str]


def shown_settings() -> dict[str, object]:
    """The settings of this process's log."""
    options = log_options()
    return {
        _FILE: options.file,
        **{name: getattr(options, field) for name, field in _SWITCHES.items()},
        _LEVEL: options.verbose,
        _FORMAT: options.format,
    }


def changed_settings(
    wanted: Mapping[str, object], as_bool: AsBool, as_integer: AsInteger, as_text: AsText
) -> Iterable[LogLevels]:
    """The levels after each of the changes, in Triton's order. Raises InvalidRequest and Unsupported at an invalid one.

    Unknown settings are passed over, as in Triton.
    """
    levels = log_levels()
    for name in ORDER:
        if name not in wanted:
            continue
        value = wanted[name]
        if name == _FILE:
            raise Unsupported("log file location can not be updated through network protocol")
        if name == _LEVEL:
            levels = replace(levels, verbose=min(as_integer(name, value), _HIGHEST_LEVEL))
        elif name == _FORMAT:
            levels = replace(levels, format=_known_format(as_text(name, value)))
        else:
            switch: Any = {_SWITCHES[name]: as_bool(name, value)}
            levels = replace(levels, **switch)
        yield levels


def _known_format(text: str) -> str:
    if text not in FORMATS:
        raise InvalidRequest(f"invalid argument for log_format, got: {text}", hint=f"one of {', '.join(FORMATS)}")
    return text
