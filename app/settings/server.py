"""The settings of a server: one frozen dataclass, made from the command line and the environment.

The command line beats the environment, which beats what the platform says (app/platforms/detect.py) and the default.
The one module that reads the process environment; what it finds there for a platform goes to that adapter's `settings`
module.
Source: docs/spec/server-options.md section 2.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from adapters.common.setting_row import SettingRow
from adapters.sagemaker.settings import SageMakerSettings
from adapters.vertex.settings import VertexSettings
from app.platforms.detect import find_platform
from app.settings.groups.platforms import PlatformSettings
from app.settings.groups.repository import RepositorySettings
from app.settings.option import Option, option, options_by_field, repeated
from app.settings.option_types import (
    BOOLEAN,
    INT64_MAX,
    INTEGER,
    INTEGER64,
    LEVEL,
    NOT_ZERO,
    PORT,
    TEXT,
    Kind,
    choice,
    integer,
    number,
    setting,
)
from app.settings.precedence import DEFAULT
from app.settings.rules import (
    BACKEND_SETTING,
    METRICS_SERVICE,
    SAGEMAKER_SERVICE,
    check,
    deprecations,
    derived,
    metrics_without_effect,
    split_backend_settings,
    split_metrics_settings,
)

if TYPE_CHECKING:
    from core.observability.logging import LogOptions

_HTTP = "HTTP"
_METRICS = "Metrics"
_BACKENDS = "Backends"
_LOGGING = "Logging"
_SERVER = "Server"
_TESTS = "For test suites"
_MOST_WORKERS = 256
_LEAST_WORKER_MEMORY = 1 << 20


def _workers(text: str) -> str:
    return text if text == "auto" else str(integer(0, _MOST_WORKERS).parse(text))


@dataclass(frozen=True, kw_only=True, repr=False)
class ServerSettings(PlatformSettings, RepositorySettings):
    """Every option that has an effect, under its name with underscores.

    `sources` says of a field where its value came from, where that is not the default. `warnings` are for the person
    who starts the server; `without_effect` names what was given and changes nothing here. `sagemaker` and
    `vertex` are there where their routes may be served; `any_layout`: the repository may be a single model.
    """

    server_id: str = option("triton", "id", TEXT, "Name of the server in its metadata.", section=_SERVER)
    exit_on_error: bool = option(
        True,
        "exit-on-error",
        BOOLEAN,
        "Whether the server ends with status 1 when a model fails to load at start; if not, it serves the others.",
        section=_SERVER,
    )
    exit_timeout_secs: int = option(
        30,
        "exit-timeout-secs",
        INTEGER,
        "Seconds that requests in flight have to finish when the server stops. Negative counts as 0.",
        section=_SERVER,
    )
    shutdown_grace_secs: float = option(
        2.0,
        "shutdown-grace-secs",
        number(0),
        "Seconds for which the server goes on answering after SIGTERM while it says that it is not ready, so that "
        "load balancers notice before its ports close.",
        section=_SERVER,
        own=True,
    )
    strict_readiness: bool = option(
        True,
        "strict-readiness",
        BOOLEAN,
        "Whether the server is ready only when every model is; if not, as soon as it is up.",
        section=_SERVER,
    )

    allow_http: bool = option(True, "allow-http", BOOLEAN, "Whether the HTTP port is opened.", section=_HTTP)
    http_address: str = option("0.0.0.0", "http-address", TEXT, "Address of the HTTP port.", section=_HTTP)
    http_port: int = option(8000, "http-port", PORT, "The HTTP port.", section=_HTTP)
    reuse_http_port: bool = option(
        False, "reuse-http-port", BOOLEAN, "Whether other servers may listen on the same port.", section=_HTTP
    )
    http_thread_count: int = option(
        8,
        "http-thread-count",
        integer(1),
        "Threads for what would hold all requests up: compressing and inflating large bodies, repository control.",
        section=_HTTP,
    )
    http_max_input_size: int = option(
        67108864,
        "http-max-input-size",
        INTEGER64,
        "Largest body of a request, in bytes, as sent and when decompressed.",
        section=_HTTP,
    )
    http_header_forward_pattern: str = option(
        "",
        "http-header-forward-pattern",
        TEXT,
        "Regular expression, in any case, for the names of headers that become parameters of the request.",
        section=_HTTP,
    )
    http_restricted_api: tuple[str, ...] = repeated(
        "http-restricted-api",
        TEXT,
        "Groups of routes and the header that opens them: <group>[,<group>...]:<header>=<value>.",
        section=_HTTP,
        secret=True,
    )
    http_request_timeout_secs: float = option(
        60.0,
        "http-request-timeout-secs",
        number(0.001),
        "Seconds without a byte after which a client that began a request, or reads a response, is dropped.",
        section=_HTTP,
        own=True,
    )
    http_keepalive_secs: float = option(
        600.0,
        "http-keepalive-secs",
        number(0),
        "Seconds after which an idle connection is closed.",
        section=_HTTP,
        own=True,
    )

    http_workers: str = option(
        "auto",
        "http-workers",
        Kind("<number>|auto", _workers),
        "Processes that answer HTTP before the one that has the models; 0: one process does both; auto: by the number "
        "of cores.",
        section=_HTTP,
        own=True,
    )
    http_worker_memory_bytes: int = option(
        256 << 20,
        "http-worker-memory-bytes",
        integer(_LEAST_WORKER_MEMORY, INT64_MAX),
        "Memory that each HTTP worker shares with the engine for large tensors, in bytes: half of it for requests, "
        "half for responses. Only what is used is taken.",
        section=_HTTP,
        own=True,
    )

    allow_metrics: bool = option(
        True, "allow-metrics", BOOLEAN, "Whether the metrics port is opened.", section=_METRICS
    )
    allow_gpu_metrics: bool = option(
        True, "allow-gpu-metrics", BOOLEAN, "Whether the metrics show the GPUs.", section=_METRICS
    )
    allow_cpu_metrics: bool = option(
        True, "allow-cpu-metrics", BOOLEAN, "Whether the metrics show CPU and memory.", section=_METRICS
    )
    metrics_address: str = option(
        "",
        "metrics-address",
        TEXT,
        "Address of the metrics port.",
        section=_METRICS,
        shown_default="that of --http-address",
    )
    metrics_port: int = option(8002, "metrics-port", PORT, "The metrics port.", section=_METRICS)
    metrics_interval_ms: float = option(
        2000.0,
        "metrics-interval-ms",
        number(1),
        "Milliseconds for which values of the devices are shown again before they are read anew.",
        section=_METRICS,
    )
    metrics_config: tuple[str, ...] = repeated(
        "metrics-config",
        setting("metrics-config", ""),
        "counter_latencies=false leaves out the durations of requests and keeps all counters of models at 0.",
        section=_METRICS,
    )

    backend_config: tuple[str, ...] = repeated(
        "backend-config",
        BACKEND_SETTING,
        "A setting of one backend, or without a backend's name of all.",
        section=_BACKENDS,
    )
    min_supported_compute_capability: float = option(
        6.0,
        "min-supported-compute-capability",
        number(0),
        "Lowest CUDA compute capability of the GPUs that are used.",
        section=_BACKENDS,
    )

    visible_gpus: str | None = option(
        None,
        "",
        TEXT,
        "The GPUs that are used, by number or UUID; empty hides all.",
        section=_BACKENDS,
        variable="CUDA_VISIBLE_DEVICES",
        shown_default="all",
        empty_counts=True,
    )

    log_verbose: int = option(
        0, "log-verbose", LEVEL, "Show verbose messages up to this level; 0 shows none.", section=_LOGGING
    )
    log_info: bool = option(True, "log-info", BOOLEAN, "Whether informational messages are shown.", section=_LOGGING)
    log_warning: bool = option(True, "log-warning", BOOLEAN, "Whether warnings are shown.", section=_LOGGING)
    log_error: bool = option(True, "log-error", BOOLEAN, "Whether errors are shown.", section=_LOGGING)
    log_format: str = option(
        "default",
        "log-format",
        choice("log-format", "default", "ISO8601", "json"),
        "Form of a log line; json is one object per line.",
        section=_LOGGING,
    )
    log_file: str = option(
        "",
        "log-file",
        TEXT,
        "File that the log is appended to.",
        section=_LOGGING,
        shown_default="the console: warnings and errors on stderr, all else on stdout",
    )
    log_access: bool = option(
        False, "log-access", BOOLEAN, "Whether every HTTP request is logged when answered.", section=_LOGGING, own=True
    )
    log_escape: bool = option(
        True,
        "",
        NOT_ZERO,
        "Whether messages are quoted as JSON strings, so that no message can look like another log line; only 0 turns "
        "it off.",
        section=_LOGGING,
        variable="TRITON_SERVER_ESCAPE_LOG_MESSAGES",
    )
    delay_scheduler: int = option(
        0,
        "",
        integer(0, INT64_MAX),
        "Hold the first batch of every model with dynamic batching until this many requests are queued.",
        section=_TESTS,
        variable="TRITONSERVER_DELAY_SCHEDULER",
    )

    sources: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()
    sagemaker: SageMakerSettings | None = None
    vertex: VertexSettings | None = None
    any_layout: bool = False

    def __post_init__(self) -> None:
        for name, value in derived(self).items():
            object.__setattr__(self, name, value)

    @property
    def backend_settings(self) -> dict[str, dict[str, str]]:
        """The values of --backend-config by backend; under "" those for all backends."""
        return split_backend_settings(self.backend_config)

    @property
    def metrics_settings(self) -> dict[str, str]:
        """The values of --metrics-config by name."""
        return split_metrics_settings(self.metrics_config)

    @property
    def log_options(self) -> LogOptions:
        from core.observability.logging import LogOptions

        return LogOptions(
            verbose=self.log_verbose,
            info=self.log_info,
            warning=self.log_warning,
            error=self.log_error,
            format=self.log_format,
            file=self.log_file,
            escape=self.log_escape,
        )

    @property
    def multi_model(self) -> bool:
        """Whether SageMaker says at run time which models to load."""
        return self.allow_sagemaker and self.sagemaker is not None and self.sagemaker.multi_model

    def services(self) -> dict[str, tuple[str, int]]:
        """The ports to open, as (address, port) by the name that messages use."""
        services = {}
        if self.allow_http:
            services["HTTP"] = (self.http_address, self.http_port)
        if self.allow_sagemaker:
            services[SAGEMAKER_SERVICE] = (self.http_address, self.sagemaker_port)
        if self.allow_vertex_ai:
            services["Vertex AI"] = (self.http_address, self.vertex_ai_port)
        if self.allow_metrics:
            services[METRICS_SERVICE] = (self.metrics_address, self.metrics_port)
        return services

    def describe(self) -> list[SettingRow]:
        """Every setting in force, secrets masked, in the order of the help text."""
        return [
            SettingRow(each.flag or each.variable, each.show(getattr(self, name)), self.sources.get(name, DEFAULT))
            for name, each in SERVER_OPTIONS.items()
        ]

    def __repr__(self) -> str:
        shown = {each.name: repr(getattr(self, each.name)) for each in fields(self)}
        shown.update({name: each.show(getattr(self, name)) for name, each in SERVER_OPTIONS.items() if each.secret})
        return f"ServerSettings({', '.join(f'{name}={text}' for name, text in shown.items())})"


SERVER_OPTIONS: dict[str, Option] = options_by_field(ServerSettings)


def read_settings(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> ServerSettings:
    """The settings that the arguments after the command and `environ` give; the process environment if it is None.

    Raises BadOption with the text for the person who starts the server.
    """
    found = find_platform(SERVER_OPTIONS, arguments, os.environ if environ is None else environ)
    given = found.given
    settings = ServerSettings(
        **given.values,
        sources=given.sources,
        warnings=(*found.warnings, *deprecations(given.values)),
        without_effect=(*given.without_effect, *metrics_without_effect(given.values)),
        sagemaker=found.sagemaker,
        vertex=found.vertex,
        any_layout=found.any_layout or bool(given.values.get("single_model")),
    )
    check(settings)
    return settings


def announce_metrics_directory(path: str) -> None:
    """Tell the metrics library of this process and its children where they count together."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = path


def disable_telemetry() -> None:
    """Keep ONNX Runtime from reporting home. It looks for this when it is imported; its own call comes too late."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def process_environment() -> dict[str, str]:
    """The variables of this process, for a child that is to have some of them."""
    return dict(os.environ)
