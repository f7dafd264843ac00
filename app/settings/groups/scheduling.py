"""The settings of the schedulers, some of them for test suites of Triton.

Source: docs/spec/schedulers.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.settings.option import option
from app.settings.option_types import INT64_MAX, integer
from core.inference.window_limits import DEFAULT_WINDOW

_TESTS = "For test suites"
_STREAMS = "Streams of responses"


@dataclass(frozen=True, kw_only=True, repr=False)
class SchedulingSettings:
    """Part of ServerSettings."""

    response_window_count: int = option(
        DEFAULT_WINDOW.responses,
        "response-window-count",
        integer(1, INT64_MAX),
        "Responses to a request that its model may send before the client has taken them.",
        section=_STREAMS,
        own=True,
    )
    response_window_bytes: int = option(
        DEFAULT_WINDOW.nbytes,
        "response-window-bytes",
        integer(1, INT64_MAX),
        "Bytes of responses to a request after which its model waits until the client has taken some.",
        section=_STREAMS,
        own=True,
    )
    delay_scheduler: int = option(
        0,
        "",
        integer(0, INT64_MAX),
        "Hold the first batch of every model with dynamic or sequence batching until this many requests are queued.",
        section=_TESTS,
        variable="TRITONSERVER_DELAY_SCHEDULER",
    )
    backlog_delay_scheduler: int = option(
        0,
        "",
        integer(0, INT64_MAX),
        "As TRITONSERVER_DELAY_SCHEDULER, for models with direct sequence batching: so many requests must wait in the "
        "backlog, too.",
        section=_TESTS,
        variable="TRITONSERVER_BACKLOG_DELAY_SCHEDULER",
    )
