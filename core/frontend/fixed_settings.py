"""The settings of trace and log, which clients can read and not change.

Source: docs/spec/trace-and-log.md sections 1 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.errors import Unsupported

TRACE_OFF: Mapping[str, object] = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
LOG_DEFAULT: Mapping[str, object] = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


def trace_change_refused() -> Unsupported:
    return Unsupported("trace settings can not be updated, this server does not trace")


def log_change_refused() -> Unsupported:
    return Unsupported("log settings can not be updated through network protocol, use the options at start")
