"""The settings of a server: one frozen dataclass, composed of the groups in app/settings/groups.

Source: docs/spec/server-options.md section 2.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trident.adapters.common.options import Option, Service, SettingRow, is_unix, options_by_field
from trident.adapters.sagemaker.settings import SageMakerSettings
from trident.adapters.vertex.settings import VertexSettings
from trident.app.process.files import temporary_directory
from trident.app.settings.groups import (
    AccessSettings,
    BackendSettings,
    GeneralSettings,
    GrpcSettings,
    HttpSettings,
    LoggingSettings,
    MetricsSettings,
    PlatformSettings,
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
    PlatformSettings,
    RepositorySettings,
):
    """Every option that has an effect, under its name with underscores.

    `sources` gives the source of each field that is not at its default. `warnings` are for the person who starts the
    server; `without_effect` names the given options that change nothing here. `sagemaker` and `vertex` are set where
    their routes may be served. With `any_layout` the repository may be a single model.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()
    sagemaker: SageMakerSettings | None = None
    vertex: VertexSettings | None = None
    any_layout: bool = False

    @property
    def log_options(self) -> LogOptions:
        histograms = self.metrics_settings.get("histogram_latencies") == "true"
        return replace(super().log_options, timing=self.response_timing, histograms=histograms)

    def __post_init__(self) -> None:
        mount = self.aws_mount_directory or self.gcs_mount_directory
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
        """Whether SageMaker says at run time which models to load."""
        return self.allow_sagemaker and self.sagemaker is not None and self.sagemaker.multi_model

    def services(self) -> dict[Service, tuple[str, int]]:
        """The services to open, each with its (address, port); the port of a Unix socket is 0."""
        services = {}
        if self.allow_grpc:
            services[Service.GRPC] = (self.grpc_address, 0 if is_unix(self.grpc_address) else self.grpc_port)
        if self.allow_http:
            services[Service.HTTP] = (self.http_address, self.http_port)
        if self.allow_sagemaker:
            services[Service.SAGEMAKER] = (self.http_address, self.sagemaker_port)
        if self.allow_vertex_ai:
            services[Service.VERTEX_AI] = (self.http_address, self.vertex_ai_port)
        if self.allow_metrics:
            services[Service.METRICS] = (self.metrics_address, self.metrics_port)
        return services

    def reuses_port(self, service: Service) -> bool:
        """Whether other servers may listen on the same port."""
        return self.reuse_grpc_port if service is Service.GRPC else self.reuse_http_port

    def describe(self) -> list[SettingRow]:
        """Every setting in force, with secrets masked, in the order of the help text."""
        return [
            SettingRow(each.flag or each.variable, each.show(getattr(self, name)), self.sources.get(name, DEFAULT))
            for name, each in SERVER_OPTIONS.items()
        ]

    def __repr__(self) -> str:
        shown = {each.name: repr(getattr(self, each.name)) for each in fields(self)}
        shown.update({name: each.show(getattr(self, name)) for name, each in SERVER_OPTIONS.items() if each.secret})
        return f"ServerSettings({', '.join(f'{name}={text}' for name, text in shown.items())})"


def _is_on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


SERVER_OPTIONS: dict[str, Option] = options_by_field(ServerSettings)
