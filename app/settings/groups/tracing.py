"""The settings of tracing.

Source: docs/spec/server-options.md section 2 "Tracing".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.settings.option import option, repeated
from app.settings.option_types import FILE, INTEGER, TEXT, at_least

if TYPE_CHECKING:
    from core.observability.tracing.options import TraceOptions

_SECTION = "Tracing"


@dataclass(frozen=True, kw_only=True, repr=False)
class TracingSettings:
    """Part of ServerSettings."""

    trace_config: tuple[str, ...] = repeated(
        "trace-config",
        TEXT,
        "<setting>=<value>: mode is triton or opentelemetry, level is OFF, TIMESTAMPS or TENSORS, rate=N traces one "
        "of N requests, count=N at most N requests. triton,file=FILE is where traces are written, "
        "triton,log-frequency=N puts N into each file. opentelemetry,url=URL is the collector, "
        "opentelemetry,resource=KEY=VALUE describes this server; opentelemetry,bsp_max_queue_size, bsp_schedule_delay "
        "and bsp_max_export_batch_size are those of the exporter.",
        section=_SECTION,
    )
    trace_file: str = option("", "trace-file", FILE, "Deprecated: --trace-config triton,file=FILE.", section=_SECTION)
    trace_level: tuple[str, ...] = repeated(
        "trace-level", TEXT, "Deprecated: --trace-config level=LEVEL.", section=_SECTION
    )
    trace_rate: int = option(1000, "trace-rate", at_least(0), "Deprecated: --trace-config rate=N.", section=_SECTION)
    trace_count: int = option(-1, "trace-count", INTEGER, "Deprecated: --trace-config count=N.", section=_SECTION)
    trace_log_frequency: int = option(
        0,
        "trace-log-frequency",
        at_least(0),
        "Deprecated: --trace-config triton,log-frequency=N.",
        section=_SECTION,
    )
    otel_queue_size: str = option(
        "",
        "",
        TEXT,
        "Spans that may wait for the collector, unless --trace-config opentelemetry,bsp_max_queue_size says so.",
        section=_SECTION,
        variable="OTEL_BSP_MAX_QUEUE_SIZE",
        shown_default="2048",
    )
    otel_schedule_delay: str = option(
        "",
        "",
        TEXT,
        "Milliseconds after which spans are sent, unless --trace-config opentelemetry,bsp_schedule_delay says so.",
        section=_SECTION,
        variable="OTEL_BSP_SCHEDULE_DELAY",
        shown_default="5000",
    )
    otel_batch_size: str = option(
        "",
        "",
        TEXT,
        "Spans that are sent together, unless --trace-config opentelemetry,bsp_max_export_batch_size says so.",
        section=_SECTION,
        variable="OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
        shown_default="512",
    )

    @property
    def trace_options(self) -> TraceOptions:
        """Raises BadOption for an invalid value."""
        from app.settings.trace_config import trace_options

        return trace_options(self)
