"""Where traces go. Only the trace thread calls it.

Destination
├── TraceFiles      Triton's trace files (trace_files.py)
└── SpanExporter    an OpenTelemetry collector (opentelemetry/)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from core.observability.tracing.setting import Setting
from core.observability.tracing.trace import Trace


class Destination(Protocol):
    def write(self, traces: Sequence[Trace]) -> None:
        """Take the roots of traces that are complete. Raises nothing."""
        ...

    def finish(self, setting: Setting) -> None:
        """All traces of a setting that was replaced have been given."""
        ...

    def close(self) -> None:
        """Write what was kept; the last call."""
        ...
