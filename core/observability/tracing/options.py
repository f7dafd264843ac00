"""What the start of the server says of tracing: --trace-config and the older --trace-* options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from core.observability.tracing.settings import OFF, TraceSettings

# Milliseconds, and spans.
DEFAULT_QUEUE_SIZE = 2048
DEFAULT_SCHEDULE_DELAY_MS = 5000
DEFAULT_BATCH_SIZE = 512
DEFAULT_RESOURCE: Mapping[str, str] = {"service.name": "triton-inference-server"}


class TraceMode(Enum):
    TRITON = "triton"
    OPENTELEMETRY = "opentelemetry"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Where spans go over OTLP: to `url`. `resource` describes the server. At most `queue_size` spans wait,
    `batch_size` of them are sent together, and `delay_ms` milliseconds pass at most before they are.
    """

    url: str = "http://localhost:4318/v1/traces"
    resource: Mapping[str, str] = field(default_factory=lambda: DEFAULT_RESOURCE)
    queue_size: int = DEFAULT_QUEUE_SIZE
    delay_ms: int = DEFAULT_SCHEDULE_DELAY_MS
    batch_size: int = DEFAULT_BATCH_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """`start` are the settings until a client changes them. `file` is empty if there is none. `shown` are the settings
    of the mode as clients see them, which they cannot change. `numbers` are the first number of a trace and the step
    to the next: no two engines of a server give one the same number.
    """

    mode: TraceMode = TraceMode.TRITON
    start: TraceSettings = field(default_factory=TraceSettings)
    file: str = ""
    export: ExportOptions = field(default_factory=ExportOptions)
    shown: Mapping[str, str] = field(default_factory=dict)
    numbers: tuple[int, int] = (1, 1)

    @property
    def has_destination(self) -> bool:
        return self.mode is TraceMode.OPENTELEMETRY or bool(self.file)


def shown_settings(settings: TraceSettings, left: int, options: TraceOptions) -> dict[str, list[str] | str]:
    """The settings as clients see them, in Triton's order. `left` is how many more requests may be sampled."""
    shown: dict[str, list[str] | str] = {
        "trace_level": list(settings.levels) or [OFF],
        "trace_rate": str(settings.rate),
        "trace_count": str(left),
    }
    if options.mode is TraceMode.TRITON:
        shown["log_frequency"] = str(settings.frequency)
        shown["trace_file"] = options.file
    shown["trace_mode"] = options.mode.value
    return {**shown, **options.shown}
