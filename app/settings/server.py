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

from trident.adapters.common.options import Option, SettingRow, is_unix, options_by_field
from trident.adapters.common.platform import Platform, PlatformSettings
from trident.app.process.files import temporary_directory
from trident.app.settings.groups import (
    PLATFORMS,
    AccessSettings,
    BackendSettings,
    GeneralSettings,
    GrpcSettings,
    HttpSettings,
    LoggingSettings,
    MetricsSettings,
    PlatformChoice,
    RateLimiterSettings,
    RepositorySettings,
    ResponseCacheSettings,
    StreamSettings,
    SuiteSettings,
    TracingSettings,
)
from trident.app.settings.sources import DEFAULT

if TYPE_CHECKING:
    from trident.core.observability.log import LogOptions


_NAME = "trident"
# The names of the services that no platform brings.
GRPC, HTTP, METRICS = "GRPC", "HTTP", "metrics"


class Service(NamedTuple):
    """Where a service listens; the port of a Unix socket is 0. `option` moves it elsewhere, `started` is Triton's name
    for it in the log, and with `reuses_port` other servers may listen on the same port.
    """

    address: str
    port: int
    option: str
    started: str
    reuses_port: bool


def cache_directory(mount: str) -> str:
    """A directory in `mount`, where Triton keeps its copies and so has room for them; the user's if `mount` is empty.

    The user's is in the home directory, or among the temporary files if the home is not writable. Raises
    NoTemporaryDirectory.
    """
    return os.path.join(mount, _NAME) if mount else _user_directory()


def _user_directory() -> str:
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
    TracingSettings,
    LoggingSettings,
    RateLimiterSettings,
    ResponseCacheSettings,
    BackendSettings,
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

    def __post_init__(self) -> None:
        mount = self.aws_mount_directory or self.gcs_mount_directory or self.azure_mount_directory
        derived = {
            "model_cache_directory": self.model_cache_directory or cache_directory(mount),
            "metrics_address": self.metrics_address or self.http_address,
            "error_hints": self.error_hints or ("text" if _is_on_terminal() else "field"),
            "disable_auto_complete_config": self.disable_auto_complete_config or self.strict_model_config,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def multi_model(self) -> bool:
        """Whether a platform says at run time which models to load."""
        return any(each.multi_model for each in self.open_platforms.values())

    def value(self, name: str) -> Any:
        """The value of any option, also of a platform's own, by the name of its field."""
        if name in PLATFORM_OPTIONS:
            return self.platform_values.get(name, PLATFORM_OPTIONS[name].default)
        return getattr(self, name)

    def services(self) -> dict[str, Service]:
        """The services to open, by their names."""
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


def _in_order() -> dict[str, Option]:
    """Every option by the name of its field, in the order of the help text: the platforms' after the choice of one."""
    before, after = (
        options_by_field(RepositorySettings) | options_by_field(PlatformChoice),
        options_by_field(ServerSettings),
    )
    return {**before, **PLATFORM_OPTIONS, **after}


def _is_on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


PLATFORM_OPTIONS = {name: each for platform in PLATFORMS for name, each in options_by_field(platform.options).items()}
SERVER_OPTIONS = _in_order()
