"""The settings of a server: one frozen dataclass, composed of the groups in app/settings/groups.

Source: docs/spec/server-options.md section 2.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trident.adapters.common.options import (
    INT32_MAX,
    TEXT,
    BadOption,
    BadValue,
    Kind,
    Option,
    SettingRow,
    integer,
    is_unix,
    options_by_field,
)
from trident.adapters.common.platform import Platform, PlatformSettings
from trident.app.process.files import temporary_directory
from trident.app.settings.groups import (
    PLATFORMS,
    AccessSettings,
    BackendsSettings,
    GeneralSettings,
    GrpcSettings,
    HttpSettings,
    LoggingSettings,
    MetricsSettings,
    PayloadLogSettings,
    PlatformChoice,
    RateLimiterSettings,
    RepositorySettings,
    ResponseCacheSettings,
    StreamSettings,
    SuiteSettings,
    TracingSettings,
)
from trident.core.observability.tracing.trace import (
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
    from trident.core.observability.log import LogOptions


DEFAULT = "default"
"""The source of a default value."""
_NAME = "trident"
# The names of the services that no platform brings.
GRPC, HTTP, METRICS = "GRPC", "HTTP", "metrics"


class Service(NamedTuple):
    """Where a service listens: at a host, in brackets or not, or at `unix:<path>` and port 0. `option` moves it
    elsewhere, `started` is Triton's name in the log; with `reuses_port` other servers may listen on the same port.
    """

    address: str
    port: int
    option: str = ""
    started: str = ""
    reuses_port: bool = False


def cache_directory(mount: str) -> str:
    """A directory in `mount`, where Triton keeps its copies and so has room for them; the user's if `mount` is empty.

    The user's is in the home directory, or among the temporary files if the home is not writable. Raises
    NoTemporaryDirectory.
    """
    if mount:
        return os.path.join(mount, _NAME)
    try:
        home = Path.home()
    except RuntimeError:  # the system does not know the user, which is common in containers
        home = Path()
    if home.is_absolute() and home.is_dir() and os.access(home, os.W_OK | os.X_OK):
        return str(home / ".cache" / _NAME)
    return str(Path(temporary_directory(), f"{_NAME}-{os.getuid()}"))


# The help text lists the options of the last base first: Python orders the fields of dataclasses so.
@dataclass(frozen=True, kw_only=True, repr=False)
class ServerSettings(
    SuiteSettings,
    StreamSettings,
    PayloadLogSettings,
    TracingSettings,
    LoggingSettings,
    RateLimiterSettings,
    ResponseCacheSettings,
    BackendsSettings,
    MetricsSettings,
    AccessSettings,
    GrpcSettings,
    HttpSettings,
    GeneralSettings,
    PlatformChoice,
    RepositorySettings,
):
    """Every option that has an effect, under its name with underscores.

    `sources` gives the source of each field that is not at its default. `warnings` are for the person who starts the
    server; `without_effect` names the given options that change nothing here. `platform_values` are the values of the
    platforms' own options; `open_platforms` are the platforms whose ports are open. With `any_layout` the repository
    may be a single model.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()
    platform_values: Mapping[str, Any] = field(default_factory=dict)
    open_platforms: Mapping[Platform, PlatformSettings] = field(default_factory=dict)
    any_layout: bool = False

    @property
    def log_options(self) -> LogOptions:
        histograms = self.metrics_settings.get("histogram_latencies") == "true"
        return replace(super().log_options, timing=self.response_timing, histograms=histograms)

    @property
    def trace_options(self) -> TraceOptions:
        """Raises BadOption for an invalid value."""
        return _trace_options(self)

    def __post_init__(self) -> None:
        mount = self.aws_mount_directory or self.gcs_mount_directory or self.azure_mount_directory
        derived = {
            "model_cache_directory": self.model_cache_directory or cache_directory(mount),
            "metrics_address": self.metrics_address or self.http_address,
            "error_hints": self.error_hints or ("text" if sys.stdout is not None and sys.stdout.isatty() else "field"),
            "disable_auto_complete_config": self.disable_auto_complete_config or self.strict_model_config,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def multi_model(self) -> bool:
        return any(each.multi_model for each in self.open_platforms.values())

    def value(self, name: str) -> Any:
        """The value of any option, also of a platform's own, by the name of its field."""
        if name in PLATFORM_OPTIONS:
            return self.platform_values.get(name, PLATFORM_OPTIONS[name].default)
        return getattr(self, name)

    def services(self) -> dict[str, Service]:
        services = {}
        if self.allow_grpc:
            grpc, reused = self.grpc_address, self.reuse_grpc_port
            if is_unix(grpc):
                services[GRPC] = Service(grpc, 0, "--grpc-address", "GRPCInferenceService", reused)
            else:
                services[GRPC] = Service(grpc, self.grpc_port, "--grpc-port", "GRPCInferenceService", reused)
        if self.allow_http:
            services[HTTP] = Service(
                self.http_address, self.http_port, "--http-port", "HTTPService", self.reuse_http_port
            )
        for platform, own in self.open_platforms.items():
            option = f"--{PLATFORM_OPTIONS[platform.port].flag}"
            services[platform.title] = Service(
                self.http_address, own.port, option, platform.service, self.reuse_http_port
            )
        if self.allow_metrics:
            services[METRICS] = Service(
                self.metrics_address, self.metrics_port, "--metrics-port", "Metrics Service", self.reuse_http_port
            )
        return services

    def describe(self) -> list[SettingRow]:
        """Every setting in force, with secrets masked, in the order of the help text."""
        return [
            SettingRow(each.flag or each.variable, each.show(self.value(name)), self.sources.get(name, DEFAULT))
            for name, each in SERVER_OPTIONS.items()
        ]

    def __repr__(self) -> str:
        shown = {each.name: repr(getattr(self, each.name)) for each in fields(self)}
        shown.update({name: each.show(self.value(name)) for name, each in SERVER_OPTIONS.items() if each.secret})
        return f"ServerSettings({', '.join(f'{name}={text}' for name, text in shown.items())})"


PLATFORM_OPTIONS = {name: each for platform in PLATFORMS for name, each in options_by_field(platform.options).items()}
# By the name of the field, in the order of the help text: the platforms' options follow the choice of one.
SERVER_OPTIONS: dict[str, Option] = {
    **options_by_field(RepositorySettings),
    **options_by_field(PlatformChoice),
    **PLATFORM_OPTIONS,
    **options_by_field(ServerSettings),
}


# --- --trace-config, the older --trace-* options and OpenTelemetry's variables, together.
# Source: docs/spec/server-options.md section 2 "Tracing", docs/spec/trace-and-log.md

_FLAG = "--trace-config"
_FORM = "--trace-config option format is <setting>=<value> or <mode>,<setting>=<value>. Got {}"
_OFF_WORDS = frozenset({"off", "false"})
_ON_WORDS = frozenset({"on", "true", "min", "max"})


def _mode(text: str) -> TraceMode:
    try:
        return TraceMode(text.lower())
    except ValueError:
        modes = '"triton" and "opentelemetry"'
        raise BadValue(f"invalid value for trace mode option: {text}. Available options are {modes}") from None


def _level(text: str) -> str:
    if text.lower() in _OFF_WORDS | _ON_WORDS:
        return OFF if text.lower() in _OFF_WORDS else TIMESTAMPS
    if text.upper() not in LEVELS:
        raise BadValue(f"invalid value for trace level option: {text}")
    return text.upper()


def _resource(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise BadValue(f"it takes <key>=<value>. Got {text}")
    return key, value


_LEVEL = Kind("level", _level)
_UINT32 = integer(0, 2**32 - 1)
_SIZE = integer(1, INT32_MAX)
# Those of all modes first.
_KINDS: Mapping[str, Kind[Any]] = {
    "mode": Kind("mode", _mode),
    "level": _LEVEL,
    "rate": _UINT32,
    "count": integer(-1, INT32_MAX),
    "triton,file": TEXT,
    "triton,log-frequency": _UINT32,
    "opentelemetry,url": TEXT,
    "opentelemetry,resource": Kind("<key>=<value>", _resource),
    "opentelemetry,bsp_max_queue_size": _SIZE,
    "opentelemetry,bsp_schedule_delay": _SIZE,
    "opentelemetry,bsp_max_export_batch_size": _SIZE,
}
# Each older option: its field, and its value that means nothing.
_OLDER = {
    "triton,file": ("trace_file", ""),
    "level": ("trace_level", ()),
    "rate": ("trace_rate", 1000),
    "count": ("trace_count", -1),
    "triton,log-frequency": ("trace_log_frequency", 0),
}


def _trace_options(settings: TracingSettings) -> TraceOptions:
    """Raises BadOption for a value that cannot be, and for settings with which nothing could be traced."""
    given = _trace_config(settings)
    last = {name: values[-1] for name, values in given.items()}
    if settings.trace_count < -1:
        raise BadOption.of("--trace-count", f"Provided option value is out of bound. Got {settings.trace_count}")
    # The older option can only disable the newer one.
    older = [_parsed(_LEVEL, "--trace-level", text) for text in settings.trace_level]
    named = [] if OFF in older else given.get("level", older)
    start = TraceSettings(
        levels=tuple(level for level in LEVELS if level in named),
        rate=last.get("rate", settings.trace_rate),
        count=last.get("count", settings.trace_count),
        frequency=last.get("triton,log-frequency", settings.trace_log_frequency),
    )

    def size(name: str, variable: str, otherwise: int) -> int:
        found = _parsed(_SIZE, f"OTEL_{name.upper()}", variable) if variable else otherwise
        return int(last.get(f"opentelemetry,{name}", found))

    defaults = ExportOptions()
    export = ExportOptions(
        url=last.get("opentelemetry,url", defaults.url),
        resource={**DEFAULT_RESOURCE, **dict(given.get("opentelemetry,resource", ()))},
        queue_size=size("bsp_max_queue_size", settings.otel_queue_size, defaults.queue_size),
        delay_ms=size("bsp_schedule_delay", settings.otel_schedule_delay, defaults.delay_ms),
        batch_size=size("bsp_max_export_batch_size", settings.otel_batch_size, defaults.batch_size),
    )
    mode = last.get("mode", TraceMode.TRITON)
    if mode is TraceMode.OPENTELEMETRY:
        if start.levels and TIMESTAMPS not in start.levels:
            raise BadOption.of(f"{_FLAG} level", "OpenTelemetry needs the level TIMESTAMPS; it cannot send tensors")
        shown = {
            "url": export.url,
            "resource": ",".join(f"{key}={value}" for key, value in export.resource.items()),
            "bsp_max_queue_size": str(export.queue_size),
            "bsp_schedule_delay": str(export.delay_ms),
            "bsp_max_export_batch_size": str(export.batch_size),
        }
        return TraceOptions(mode=mode, start=start, file="", export=export, shown=shown)
    file = last.get("triton,file", settings.trace_file)
    if start.levels and not file:
        raise BadOption.of(_FLAG, "trace file name is not given: add --trace-config triton,file=<file>")
    if start.levels and not start.rate:
        raise BadOption.of(f"{_FLAG} rate", "sample rate must be non-zero")
    return TraceOptions(mode=mode, start=start, file=file, export=export, shown={})


def overridden_trace_options(settings: TracingSettings) -> list[str]:
    """The older options that --trace-config overrides."""
    given = _trace_config(settings)
    return [
        f"--{field.replace('_', '-')}"
        for name, (field, nothing) in _OLDER.items()
        if name in given and getattr(settings, field) != nothing
    ]


def _trace_config(settings: TracingSettings) -> dict[str, list[Any]]:
    """The values of each setting of --trace-config, as `mode,setting` or `setting`. Raises BadOption."""
    found: dict[str, list[Any]] = {}
    for text in settings.trace_config:
        name, equals, value = text.partition("=")
        mode, comma, setting = name.rpartition(",")
        if not equals or not setting or (comma and not mode):
            raise BadOption.of(_FLAG, _FORM.format(text))
        name = f"{mode.lower()},{setting}" if mode else setting
        if name not in _KINDS:
            raise BadOption.of(_FLAG, f"there is no setting '{name}', only {', '.join(_KINDS)}")
        found.setdefault(name, []).append(_parsed(_KINDS[name], f"{_FLAG} {name}", value))
    return found


def _parsed(kind: Kind[Any], source: str, text: str) -> Any:
    try:
        return kind.parse(text)
    except BadValue as error:
        raise BadOption.of(source, str(error)) from None
