"""The values of --trace-config, of the older --trace-* options and of OpenTelemetry's variables, together.

Source: docs/spec/server-options.md section 2 "Tracing", docs/spec/trace-and-log.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from trident.adapters.common.options import INT32_MAX, BadOption, BadValue, integer
from trident.core.observability.tracing.settings import (
    DEFAULT_RESOURCE,
    LEVELS,
    OFF,
    TIMESTAMPS,
    ExportOptions,
    TraceMode,
    TraceOptions,
    TraceSettings,
)

if TYPE_CHECKING:
    from trident.app.settings.groups import TracingSettings

T = TypeVar("T")
# The texts of each setting, as `mode,setting` or `setting`.
Given = Mapping[str, Sequence[str]]

_FLAG = "--trace-config"
_FORM = "--trace-config option format is <setting>=<value> or <mode>,<setting>=<value>. Got {}"
_UINT32 = integer(0, 2**32 - 1)
_COUNT = integer(-1, INT32_MAX)
_SIZE = integer(1, INT32_MAX)
_OFF_WORDS = frozenset({"off", "false"})
_ON_WORDS = frozenset({"on", "true", "min", "max"})
# Those of all modes first. Each older option has its field and its value that means nothing.
_KNOWN = (
    *("mode", "level", "rate", "count", "triton,file", "triton,log-frequency"),
    *("opentelemetry,url", "opentelemetry,resource", "opentelemetry,bsp_max_queue_size"),
    *("opentelemetry,bsp_schedule_delay", "opentelemetry,bsp_max_export_batch_size"),
)
_OLDER = {
    "triton,file": ("trace_file", ""),
    "level": ("trace_level", ()),
    "rate": ("trace_rate", 1000),
    "count": ("trace_count", -1),
    "triton,log-frequency": ("trace_log_frequency", 0),
}


def trace_options(settings: TracingSettings) -> TraceOptions:
    """Raises BadOption for a value that cannot be, and for settings with which nothing could be traced."""
    given = _split(settings.trace_config)
    if settings.trace_count < -1:
        raise BadOption.of("--trace-count", f"Provided option value is out of bound. Got {settings.trace_count}")
    start = TraceSettings(
        levels=_levels(settings, given),
        rate=_last(given, "rate", _UINT32.parse, settings.trace_rate),
        count=_last(given, "count", _COUNT.parse, settings.trace_count),
        frequency=_last(given, "triton,log-frequency", _UINT32.parse, settings.trace_log_frequency),
    )
    export = _export(settings, given)
    mode = _last(given, "mode", _mode, TraceMode.TRITON)
    if mode is TraceMode.OPENTELEMETRY:
        if start.levels and TIMESTAMPS not in start.levels:
            raise BadOption.of(f"{_FLAG} level", "OpenTelemetry needs the level TIMESTAMPS; it cannot send tensors")
        return TraceOptions(mode=mode, start=start, file="", export=export, shown=_shown(export))
    file = _last(given, "triton,file", str, settings.trace_file)
    if start.levels and not file:
        raise BadOption.of(_FLAG, "trace file name is not given: add --trace-config triton,file=<file>")
    if start.levels and not start.rate:
        raise BadOption.of(f"{_FLAG} rate", "sample rate must be non-zero")
    return TraceOptions(mode=mode, start=start, file=file, export=export, shown={})


def overridden(settings: TracingSettings) -> list[str]:
    """The older options that --trace-config overrides."""
    given = _split(settings.trace_config)
    return [
        f"--{field.replace('_', '-')}"
        for name, (field, nothing) in _OLDER.items()
        if name in given and getattr(settings, field) != nothing
    ]


def _split(texts: Sequence[str]) -> dict[str, list[str]]:
    """Raises BadOption."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        mode, comma, setting = name.rpartition(",")
        if not equals or not setting or (comma and not mode):
            raise BadOption.of(_FLAG, _FORM.format(text))
        name = f"{mode.lower()},{setting}" if mode else setting
        if name not in _KNOWN:
            raise BadOption.of(_FLAG, f"there is no setting '{name}', only {', '.join(_KNOWN)}")
        found.setdefault(name, []).append(value)
    return found


def _last(given: Given, name: str, parse: Callable[[str], T], otherwise: T) -> T:
    """The last value of a setting counts. Raises BadOption."""
    if name not in given:
        return otherwise
    try:
        return parse(given[name][-1])
    except BadValue as error:
        raise BadOption.of(f"{_FLAG} {name}", str(error)) from None


def _mode(text: str) -> TraceMode:
    try:
        return TraceMode(text.lower())
    except ValueError:
        modes = '"triton" and "opentelemetry"'
        raise BadValue(f"invalid value for trace mode option: {text}. Available options are {modes}") from None


def _levels(settings: TracingSettings, given: Given) -> tuple[str, ...]:
    """All levels that are named. The older option can only switch off what the newer one asks for."""
    older = [_level("--trace-level", text) for text in settings.trace_level]
    if OFF in older:
        return ()
    named = [_level(f"{_FLAG} level", text) for text in given.get("level", ())] or older
    return tuple(level for level in LEVELS if level in named)


def _level(source: str, text: str) -> str:
    folded = text.lower()
    if folded in _OFF_WORDS:
        return OFF
    if folded in _ON_WORDS:
        return TIMESTAMPS
    if text.upper() not in LEVELS:
        raise BadOption.of(source, f"invalid value for trace level option: {text}")
    return text.upper()


def _export(settings: TracingSettings, given: Given) -> ExportOptions:
    defaults = ExportOptions()
    resource = dict(DEFAULT_RESOURCE)
    for text in given.get("opentelemetry,resource", ()):
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise BadOption.of(f"{_FLAG} opentelemetry,resource", f"it takes <key>=<value>. Got {text}")
        resource[key] = value

    def size(name: str, variable: str, otherwise: int) -> int:
        try:
            found = _SIZE.parse(variable) if variable else otherwise
        except BadValue as error:
            raise BadOption.of(f"OTEL_{name.upper()}", str(error)) from None
        return _last(given, f"opentelemetry,{name}", _SIZE.parse, found)

    return ExportOptions(
        url=_last(given, "opentelemetry,url", str, defaults.url),
        resource=resource,
        queue_size=size("bsp_max_queue_size", settings.otel_queue_size, defaults.queue_size),
        delay_ms=size("bsp_schedule_delay", settings.otel_schedule_delay, defaults.delay_ms),
        batch_size=size("bsp_max_export_batch_size", settings.otel_batch_size, defaults.batch_size),
    )


def _shown(export: ExportOptions) -> dict[str, str]:
    """The settings of the mode as clients see them, with those that nobody gave."""
    return {
        "url": export.url,
        "resource": ",".join(f"{key}={value}" for key, value in export.resource.items()),
        "bsp_max_queue_size": str(export.queue_size),
        "bsp_schedule_delay": str(export.delay_ms),
        "bsp_max_export_batch_size": str(export.batch_size),
    }
