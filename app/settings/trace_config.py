"""The values of --trace-config, of the older --trace-* options and of OpenTelemetry's variables, together.

Source: docs/spec/server-options.md section 2 "Tracing", docs/spec/trace-and-log.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

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

_FLAG = "--trace-config"
_FORM = "--trace-config option format is <setting>=<value> or <mode>,<setting>=<value>. Got {}"
_UINT32 = integer(0, 2**32 - 1)
_COUNT = integer(-1, INT32_MAX)
_SIZE = integer(1, INT32_MAX)
_OFF_WORDS = frozenset({"off", "false"})
_ON_WORDS = frozenset({"on", "true", "min", "max"})

# The settings by the mode that they belong to, "" for those of all.
_KNOWN: Mapping[str, tuple[str, ...]] = {
    "": ("mode", "level", "rate", "count"),
    "triton": ("file", "log-frequency"),
    "opentelemetry": ("url", "resource", "bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size"),
}
_MODES = '"triton" and "opentelemetry"'


class _Given(NamedTuple):
    """The values of one setting, and where they come from, for errors."""

    source: str
    texts: tuple[str, ...]

    def last(self, parse: Callable[[str], T]) -> T:
        """Raises BadOption."""
        try:
            return parse(self.texts[-1])
        except BadValue as error:
            raise BadOption.of(self.source, str(error)) from None


def trace_options(settings: TracingSettings) -> TraceOptions:
    """Raises BadOption for a value that cannot be, and for settings with which nothing could be traced."""
    given = _split(settings.trace_config)
    mode = given["mode"].last(_mode) if "mode" in given else TraceMode.TRITON
    start = _start(settings, given)
    file = given["triton,file"].texts[-1] if "triton,file" in given else settings.trace_file
    is_triton = mode is TraceMode.TRITON
    options = TraceOptions(
        mode=mode,
        start=start,
        file=file if is_triton else "",
        export=_export(settings, given),
        shown={} if is_triton else _shown(settings, given),
    )
    if start.levels:
        _check(options)
    return options


def overridden(settings: TracingSettings) -> tuple[str, ...]:
    """The older options that --trace-config overrides."""
    given = _split(settings.trace_config)
    return tuple(
        flag
        for flag, name, is_set in (
            ("--trace-file", "triton,file", bool(settings.trace_file)),
            ("--trace-level", "level", bool(settings.trace_level)),
            ("--trace-rate", "rate", settings.trace_rate != 1000),
            ("--trace-count", "count", settings.trace_count != -1),
            ("--trace-log-frequency", "triton,log-frequency", settings.trace_log_frequency != 0),
        )
        if is_set and name in given
    )


def _split(texts: tuple[str, ...]) -> dict[str, _Given]:
    """The values by setting, as `mode,setting` or `setting`. Raises BadOption."""
    found: dict[str, _Given] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        owner, comma, setting = name.rpartition(",")
        if not equals or not setting or (comma and not owner):
            raise BadOption.of(_FLAG, _FORM.format(text))
        owner = owner.lower()  # the mode
        name = f"{owner},{setting}" if owner else setting
        if setting not in _KNOWN.get(owner, ()):
            names = [f"{mode},{each}" if mode else each for mode, known in _KNOWN.items() for each in known]
            raise BadOption.of(_FLAG, f"there is no setting '{name}', only {', '.join(names)}")
        before = found[name].texts if name in found else ()
        found[name] = _Given(f"{_FLAG} {name}", (*before, value))
    return found


def _mode(text: str) -> TraceMode:
    try:
        return TraceMode(text.lower())
    except ValueError:
        raise BadValue(f"invalid value for trace mode option: {text}. Available options are {_MODES}") from None


def _start(settings: TracingSettings, given: Mapping[str, _Given]) -> TraceSettings:
    if settings.trace_count < -1:
        raise BadOption.of("--trace-count", f"Provided option value is out of bound. Got {settings.trace_count}")
    return TraceSettings(
        levels=_levels(settings, given),
        rate=given["rate"].last(_UINT32.parse) if "rate" in given else settings.trace_rate,
        count=given["count"].last(_COUNT.parse) if "count" in given else settings.trace_count,
        frequency=(
            given["triton,log-frequency"].last(_UINT32.parse)
            if "triton,log-frequency" in given
            else settings.trace_log_frequency
        ),
    )


def _levels(settings: TracingSettings, given: Mapping[str, _Given]) -> tuple[str, ...]:
    """All levels that are named. The older option can only switch off what the newer one asks for."""
    older = [_level("--trace-level", text) for text in settings.trace_level]
    if OFF in older:
        return ()
    newer = [_level(f"{_FLAG} level", text) for text in given["level"].texts] if "level" in given else []
    named = newer or older
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


def _export(settings: TracingSettings, given: Mapping[str, _Given]) -> ExportOptions:
    defaults = ExportOptions()
    url = given.get("opentelemetry,url")
    return ExportOptions(
        url=url.texts[-1] if url is not None else defaults.url,
        resource={**DEFAULT_RESOURCE, **_resource(given)},
        queue_size=_batch(given, "bsp_max_queue_size", settings.otel_queue_size, defaults.queue_size),
        delay_ms=_batch(given, "bsp_schedule_delay", settings.otel_schedule_delay, defaults.delay_ms),
        batch_size=_batch(given, "bsp_max_export_batch_size", settings.otel_batch_size, defaults.batch_size),
    )


def _batch(given: Mapping[str, _Given], name: str, variable: str, default: int) -> int:
    found = given.get(f"opentelemetry,{name}")
    if found is None and variable:
        found = _Given(f"OTEL_{name.upper()}", (variable,))
    return default if found is None else found.last(_SIZE.parse)


def _resource(given: Mapping[str, _Given]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given["opentelemetry,resource"].texts if "opentelemetry,resource" in given else ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise BadOption.of(f"{_FLAG} opentelemetry,resource", f"it takes <key>=<value>. Got {text}")
        found[key] = value
    return found


def _shown(settings: TracingSettings, given: Mapping[str, _Given]) -> dict[str, str]:
    """The settings of the mode as clients see them, with those that nobody gave."""
    export = _export(settings, given)
    return {
        "url": export.url,
        "resource": ",".join(f"{key}={value}" for key, value in export.resource.items()),
        "bsp_max_queue_size": str(export.queue_size),
        "bsp_schedule_delay": str(export.delay_ms),
        "bsp_max_export_batch_size": str(export.batch_size),
    }


def _check(options: TraceOptions) -> None:
    if options.mode is TraceMode.OPENTELEMETRY:
        if TIMESTAMPS not in options.start.levels:
            raise BadOption.of(f"{_FLAG} level", "OpenTelemetry needs the level TIMESTAMPS; it cannot send tensors")
    elif not options.file:
        raise BadOption.of(_FLAG, "trace file name is not given: add --trace-config triton,file=<file>")
    elif not options.start.rate:
        raise BadOption.of(f"{_FLAG} rate", "sample rate must be non-zero")
