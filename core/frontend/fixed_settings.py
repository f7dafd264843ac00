"""The settings of the trace, which clients can read and not change.

Source: docs/spec/trace-and-log.md section 1.
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


def trace_change_refused() -> Unsupported:
    return Unsupported("trace settings can not be updated, this server does not trace")
