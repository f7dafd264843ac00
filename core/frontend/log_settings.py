"""The settings of the log as clients read and change them.

Source: docs/spec/trace-and-log.md section 5.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from core.errors import InvalidRequest, Unsupported
from core.observability.logging import FORMATS, LogLevels, log_levels, log_options

_FILE = "log_file"
_FORMAT = "log_format"
_SWITCHES = {"log_info": "info", "log_warning": "warning", "log_error": "error"}
_LEVEL = "log_verbose_level"
# Trident's own.
_ACCESS = "log_access"
_BOOLEANS = {"response_timing": "timing", "histogram_latencies": "histograms"}
# Triton applies the settings of a call in this order, and those before an invalid one stay applied.
ORDER = (_FILE, *_SWITCHES, _LEVEL, _FORMAT, _ACCESS, *_BOOLEANS)
_HIGHEST_LEVEL = 2**32 - 1
_SCOPES = ("false", "true", "all")

# What makes a setting of the value that a client sent, by the kinds of value. Raises InvalidRequest.
AsBool = Callable[[str, object], bool]
AsInteger = Callable[[str, object], int]
AsText = Callable[[str, object], str]


def shown_settings() -> dict[str, object]:
    """The settings of this process's log: Triton's, and of Trident's own those that are switched on, because clients of
    Triton compare the whole answer.
    """
    options = log_options()
    own = {_ACCESS: options.access} if options.access != _SCOPES[0] else {}
    return {
        _FILE: options.file,
        **{name: getattr(options, field) for name, field in _SWITCHES.items()},
        _LEVEL: options.verbose,
        _FORMAT: options.format,
        **own,
        **{name: True for name, field in _BOOLEANS.items() if getattr(options, field)},
    }


def changed_settings(
    wanted: Mapping[str, object], as_bool: AsBool, as_integer: AsInteger, as_text: AsText
) -> Iterable[LogLevels]:
    """The levels after each of the changes, in Triton's order. Raises InvalidRequest and Unsupported at an invalid one,
    and before any for a setting that does not exist.
    """
    check_names("log setting", wanted, ORDER)
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
            levels = replace(levels, format=_known(name, as_text(name, value), FORMATS))
        elif name == _ACCESS:
            text = as_text(name, value) if not isinstance(value, bool) else str(value).lower()
            levels = replace(levels, access=_known(name, text, _SCOPES))
        else:
            switch: Any = {(_SWITCHES | _BOOLEANS)[name]: as_bool(name, value)}
            levels = replace(levels, **switch)
        yield levels


def check_names(kind: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise InvalidRequest for a name that is none of the `known` ones of this kind: nothing would change, and nobody
    would notice."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f", did you mean '{near[0]}'?" if near else ""
            raise InvalidRequest(f"unknown {kind} '{name}'{meant}", hint=f"one of {', '.join(known)}")


def _known(name: str, text: str, values: Sequence[str]) -> str:
    if text not in values:
        raise InvalidRequest(f"invalid argument for {name}, got: {text}", hint=f"one of {', '.join(values)}")
    return text
