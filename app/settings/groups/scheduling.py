"""The settings by which test suites of Triton control the scheduler.

Source: docs/spec/schedulers.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.settings.option import option
from app.settings.option_types import INT64_MAX, integer

_SECTION = "For test suites"


@dataclass(frozen=True, kw_only=True, repr=False)
class SchedulingSettings:
    """Part of ServerSettings."""

    delay_scheduler: int = option(
        0,
        "",
        integer(0, INT64_MAX),
        "Hold the first batch of every model with dynamic batching until this many requests are queued.",
        section=_SECTION,
        variable="TRITONSERVER_DELAY_SCHEDULER",
    )
