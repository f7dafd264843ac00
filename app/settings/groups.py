"""The settings of the gRPC port.

Source: docs/spec/server-options.md section 2 "gRPC", docs/spec/grpc.md section 6.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from adapters.sagemaker.settings import parse_port_range
from adapters.vertex.settings import KEY_FIELD, PayloadKind
from app.settings.option import (
    ADDRESS,
    BOOLEAN,
    FILE,
    FLAG,
    FOLDER,
    INT32_MAX,
    INT64_MAX,
    INTEGER,
    INTEGER64,
    LEVEL,
    NOT_ZERO,
    PORT,
    REPOSITORY,
    TEXT,
    BadValue,
    Kind,
    Option,
    at_least,
    choice,
    integer,
    number,
    option,
    pair,
    repeated,
    setting,
    variable_of,
)
from core.inference.window_limits import DEFAULT_WINDOW
from core.response_cache.redis_options import RedisOptions
from core.scheduling.resource_limit import ResourceLimit

if TYPE_CHECKING:
    from core.observability.log import LogOptions
    from core.observability.tracing.settings import TraceOptions


_SECTION = "Access"
SCOPES = ("admin", "all")


@dataclass(frozen=True, kw_only=True, repr=False)
class AccessSettings:
    """Part of ServerSettings."""

    auth_token_file: str = option(
        "",
        "auth-token-file",
        FILE,
        "File with the bearer tokens that clients of the HTTP and gRPC ports must send, one a line; a change of it is "
        "noticed.",
        section=_SECTION,
        own=True,
    )
    auth_token_scope: str = option(
        "all",
        "auth-token-scope",
        choice("auth-token-scope", *SCOPES),
        "What needs a token: all but health, or only what changes the server (admin: shared-memory, model-repository, "
        "trace, logging).",
        section=_SECTION,
        own=True,
    )


# Source: docs/spec/server-options.md section 2 "Cache".


_BACKENDS_SECTION = "Backends"


def split_backend_setting(text: str) -> tuple[str, str, str]:
    """Backend ("" for all), name and value of one value of --backend-config. Raises BadValue."""
    backend, comma, rest = text.partition(",") if "," in text else ("", "", text)
    name, equals, value = rest.partition("=")
    if (comma and not backend) or not (name and equals and value):
        raise BadValue(f"--backend-config option format is '<backend name>,<setting>=<value>'. Got {text}")
    return backend, name, value


def split_backend_settings(texts: Iterable[str]) -> dict[str, dict[str, str]]:
    """Values of --backend-config by backend and name; the last of several values for one name counts."""
    settings: dict[str, dict[str, str]] = {}
    for text in texts:
        backend, name, value = split_backend_setting(text)
        settings.setdefault(backend, {})[name] = value
    return settings


def _backend_setting(text: str) -> str:
    split_backend_setting(text)
    return text


BACKEND_SETTING = Kind("[<backend>,]<setting>=<value>", _backend_setting)


@dataclass(frozen=True, kw_only=True, repr=False)
class BackendSettings:
    """Part of ServerSettings."""

    backend_config: tuple[str, ...] = repeated(
        "backend-config",
        BACKEND_SETTING,
        "A setting of one backend, or of all backends without the name of one.",
        section=_BACKENDS_SECTION,
    )
    backend_directory: str = option(
        "/opt/tritonserver/backends",
        "backend-directory",
        FOLDER,
        "Folder of the backends that are written in Python, NAME/model.py each.",
        section=_BACKENDS_SECTION,
    )
    strict_python_outputs: bool = option(
        False,
        "strict-python-outputs",
        FLAG,
        "Fail a request to a Python model whose outputs have a name, datatype, shape or number of rows that the "
        "configuration does not have; without it, the log warns once.",
        section=_BACKENDS_SECTION,
        own=True,
    )
    min_supported_compute_capability: float = option(
        6.0,
        "min-supported-compute-capability",
        number(0),
        "Minimum CUDA compute capability of the GPUs that are used.",
        section=_BACKENDS_SECTION,
    )
    gpu_missing: str = option(
        "error",
        "gpu-missing",
        choice("gpu-missing", "error", "cpu"),
        "What becomes of a model whose configuration asks for a GPU (KIND_GPU) on a machine without one: it fails to "
        "load, or it runs on the CPU, with a warning in the log.",
        section=_BACKENDS_SECTION,
        own=True,
    )
    visible_gpus: str | None = option(
        None,
        "",
        TEXT,
        "GPUs to use, by number or UUID; an empty value hides all GPUs.",
        section=_BACKENDS_SECTION,
        variable="CUDA_VISIBLE_DEVICES",
        shown_default="all",
        empty_counts=True,
    )

    @property
    def backend_settings(self) -> dict[str, dict[str, str]]:
        """The values of --backend-config by backend, and of the options that are settings of a backend.

        Those for all backends are under "".
        """
        settings = split_backend_settings(self.backend_config)
        settings.setdefault("", {}).setdefault("backend-directory", self.backend_directory)
        if self.strict_python_outputs:
            settings.setdefault("python", {}).setdefault("strict-outputs", "true")
        return settings


# Source: docs/spec/server-options.md section 2.


_GENERAL_SECTION = "Server"
# A boolean, as in tritonserver, or auto.
_STRICTNESS = Kind(
    "auto|true|false",
    lambda text: text if text == "auto" else "true" if BOOLEAN.parse(text) else "false",
    ("auto", "true", "false"),
)


_MAX_ENGINES = 64


def _engines(text: str) -> str:
    return text if text == "auto" else str(integer(1, _MAX_ENGINES).parse(text))


@dataclass(frozen=True, kw_only=True, repr=False)
class GeneralSettings:
    """Part of ServerSettings."""

    server_id: str = option("triton", "id", TEXT, "Name of the server in its metadata.", section=_GENERAL_SECTION)
    exit_on_error: bool = option(
        True,
        "exit-on-error",
        BOOLEAN,
        "Whether the server exits with status 1 when a model fails to load at startup; otherwise it serves the other "
        "models.",
        section=_GENERAL_SECTION,
    )
    exit_timeout_secs: int = option(
        30,
        "exit-timeout-secs",
        at_least(0),
        "Seconds that requests in flight have to finish when the server stops. A negative value counts as 0.",
        section=_GENERAL_SECTION,
    )
    shutdown_grace_secs: float = option(
        2.0,
        "shutdown-grace-secs",
        number(0),
        "Seconds for which the server continues to answer after SIGTERM while it reports that it is not ready, so "
        "that load balancers notice before its ports close.",
        section=_GENERAL_SECTION,
        own=True,
    )
    engines: str = option(
        "1",
        "engines",
        Kind("<number>|auto", _engines, ("auto",)),
        "Number of processes that run the models, behind the same HTTP workers, each with its own sessions and "
        "instances; auto: chosen by the number of cores.",
        section=_GENERAL_SECTION,
        own=True,
    )
    pin_engines: bool = option(
        False,
        "pin-engines",
        BOOLEAN,
        "Whether each of several engines is kept on its share of the processors.",
        section=_GENERAL_SECTION,
        own=True,
    )
    error_hints: str = option(
        "",
        "error-hints",
        choice("error-hints", "text", "field", "off"),
        "How clients get the cure of an error, if the server knows one. text: at the end of the error's text, which is "
        "all that tritonclient shows. field: only beside it, in the body of the HTTP port, the header Trident-Hint and "
        "the metadata trident-hint, so that the text is Triton's. off: not at all.",
        section=_GENERAL_SECTION,
        own=True,
        shown_default="text if stdout is a terminal, otherwise field",
    )
    response_timing: bool = option(
        False,
        "response-timing",
        BOOLEAN,
        "Whether every answer carries its queue and compute times and its batch size: in the header Server-Timing, "
        "on SageMaker also in its custom attributes, and as response parameters if a request has the parameter "
        "'timing': true.",
        section=_GENERAL_SECTION,
        own=True,
    )
    allow_client_shm: bool = option(
        False,
        "allow-client-shm",
        BOOLEAN,
        "Whether clients may register regions of shared memory, in which inputs and outputs of their requests lie.",
        section=_GENERAL_SECTION,
    )
    client_shm_map_bytes: int = option(
        0,
        "client-shm-map-bytes",
        integer(0, INT64_MAX),
        "Tensors of at least so many bytes in the shared memory of clients are read and written through a map of it, "
        "which saves copies. A client that shrinks the memory while a model reads it then ends the engine. 0: never.",
        section=_GENERAL_SECTION,
        own=True,
    )
    strict_readiness: str = option(
        "auto",
        "strict-readiness",
        _STRICTNESS,
        "When the server is ready. auto: when every model of the start serves; a later load that fails changes "
        "nothing. true: when every version of every model is ready. false: as soon as it has started.",
        section=_GENERAL_SECTION,
    )


# Source: docs/spec/server-options.md section 2 "HTTP".


_HTTP_SECTION = "HTTP"
_MAX_WORKERS = 256
_MIN_WORKER_MEMORY = 1 << 20


def _workers(text: str) -> str:
    return "auto" if text.lower() == "auto" else str(integer(0, _MAX_WORKERS).parse(text))


@dataclass(frozen=True, kw_only=True, repr=False)
class HttpSettings:
    """Part of ServerSettings."""

    allow_http: bool = option(True, "allow-http", BOOLEAN, "Whether the HTTP port is opened.", section=_HTTP_SECTION)
    http_address: str = option("0.0.0.0", "http-address", ADDRESS, "Address of the HTTP port.", section=_HTTP_SECTION)
    http_port: int = option(8000, "http-port", PORT, "The HTTP port.", section=_HTTP_SECTION)
    reuse_http_port: bool = option(
        False, "reuse-http-port", BOOLEAN, "Whether other servers may listen on the same port.", section=_HTTP_SECTION
    )
    http_thread_count: int = option(
        8,
        "http-thread-count",
        integer(1),
        "Threads for work that would delay all other requests: compression and decompression of large bodies, "
        "repository control.",
        section=_HTTP_SECTION,
    )
    http_max_input_size: int = option(
        67108864,
        "http-max-input-size",
        INTEGER64,
        "Maximum size of a request body in bytes, as sent and when decompressed.",
        section=_HTTP_SECTION,
    )
    health_body: str = option(
        "empty",
        "health-body",
        choice("health-body", "empty", "json"),
        'Body of a 200 of the health routes: empty, as in Triton, or JSON such as {"ready":true}, which clients of '
        "KServe read.",
        section=_HTTP_SECTION,
        own=True,
    )
    http_header_forward_pattern: str = option(
        "",
        "http-header-forward-pattern",
        TEXT,
        "Regular expression in RE2's syntax, ignoring case, for the names of headers that are forwarded as parameters "
        "of the request.",
        section=_HTTP_SECTION,
    )
    http_restricted_api: tuple[str, ...] = repeated(
        "http-restricted-api",
        TEXT,
        "Groups of routes, and the header that a request to them must have: <group>[,<group>...]:<header>=<value>.",
        section=_HTTP_SECTION,
        secret=True,
    )
    http_use_ssl: bool = option(
        False,
        "http-use-ssl",
        BOOLEAN,
        "Whether clients of the HTTP port must use TLS, which needs a certificate and a key.",
        section=_HTTP_SECTION,
        own=True,
    )
    http_use_ssl_mutual: bool = option(
        False,
        "http-use-ssl-mutual",
        BOOLEAN,
        "Whether they must use TLS and have a certificate that one of the root certificates has signed.",
        section=_HTTP_SECTION,
        own=True,
    )
    http_server_cert: str = option(
        "",
        "http-server-cert",
        FILE,
        "File with the server's certificate in PEM, followed by those of its issuers; a change of it is noticed.",
        section=_HTTP_SECTION,
        own=True,
    )
    http_server_key: str = option(
        "",
        "http-server-key",
        FILE,
        "File with the certificate's key in PEM, without a password.",
        section=_HTTP_SECTION,
        own=True,
    )
    http_root_cert: str = option(
        "",
        "http-root-cert",
        FILE,
        "File with the root certificates of the clients in PEM.",
        section=_HTTP_SECTION,
        own=True,
    )
    http_request_timeout_secs: float = option(
        60.0,
        "http-request-timeout-secs",
        number(0.001),
        "Seconds without a byte after which a client that is sending a request or reading a response is disconnected.",
        section=_HTTP_SECTION,
        own=True,
    )
    http_keepalive_secs: float = option(
        600.0,
        "http-keepalive-secs",
        number(0),
        "Seconds after which an idle connection is closed.",
        section=_HTTP_SECTION,
        own=True,
    )
    http_workers: str = option(
        "auto",
        "http-workers",
        Kind("<number>|auto", _workers, ("auto",)),
        "Number of HTTP processes in front of the engine process; 0: one process does both; auto: chosen by the "
        "number of cores.",
        section=_HTTP_SECTION,
        own=True,
    )
    http_worker_memory_bytes: int = option(
        256 << 20,
        "http-worker-memory-bytes",
        integer(_MIN_WORKER_MEMORY, INT64_MAX),
        "Memory in bytes that each HTTP worker shares with the engine for large tensors: half of it for requests, "
        "half for responses. Only the used part is allocated.",
        section=_HTTP_SECTION,
        own=True,
    )


# Source: docs/spec/server-options.md section 2 "gRPC", docs/spec/grpc.md section 6.


COMPRESSION_LEVELS = ("none", "low", "medium", "high")
_GRPC_SECTION = "gRPC"
_MIN_THREADS = 2
_MAX_THREADS = 128


def _threads(text: str) -> int:
    count = INTEGER.parse(text)
    if not _MIN_THREADS <= count <= _MAX_THREADS:
        raise BadValue("invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128.")
    return count


def _compression(text: str) -> str:
    folded = text.lower()
    if folded not in COMPRESSION_LEVELS:
        raise BadValue(
            f"invalid argument for --grpc_infer_response_compression_level: '{text}' is not one of "
            f"{', '.join(COMPRESSION_LEVELS)}"
        )
    return folded


@dataclass(frozen=True, kw_only=True, repr=False)
class GrpcSettings:
    """Part of ServerSettings. Times are in milliseconds, as tritonserver's."""

    allow_grpc: bool = option(True, "allow-grpc", BOOLEAN, "Whether the gRPC port is opened.", section=_GRPC_SECTION)
    grpc_address: str = option(
        "0.0.0.0",
        "grpc-address",
        ADDRESS,
        "Address of the gRPC port; unix:<path> is a Unix socket, without a port.",
        section=_GRPC_SECTION,
    )
    grpc_port: int = option(8001, "grpc-port", PORT, "The gRPC port.", section=_GRPC_SECTION)
    reuse_grpc_port: bool = option(
        False, "reuse-grpc-port", BOOLEAN, "Whether other servers may listen on the same port.", section=_GRPC_SECTION
    )
    grpc_header_forward_pattern: str = option(
        "",
        "grpc-header-forward-pattern",
        TEXT,
        "Regular expression in RE2's syntax, ignoring case, for the names of metadata that is forwarded as parameters "
        "of the request.",
        section=_GRPC_SECTION,
    )
    grpc_restricted_protocol: tuple[str, ...] = repeated(
        "grpc-restricted-protocol",
        TEXT,
        "Groups of calls, and the metadata that a call of them must have: <group>[,<group>...]:<key>=<value>, sent as "
        "triton-grpc-protocol-<key>.",
        section=_GRPC_SECTION,
        secret=True,
    )
    grpc_reflection: bool = option(
        True,
        "grpc-reflection",
        BOOLEAN,
        "Whether clients such as grpcurl may ask for the services and their messages.",
        section=_GRPC_SECTION,
        own=True,
    )
    grpc_max_message_size: int = option(
        2147483647,
        "grpc-max-message-size",
        integer(1, 2147483647),
        "Largest message that is received, in bytes, also after decompression.",
        section=_GRPC_SECTION,
        own=True,
    )
    grpc_max_unfinished_size: int = option(
        536870912,
        "grpc-max-unfinished-size",
        integer(1, 2**40),
        "Bytes that the messages which are being received may have together, in each process and besides the largest "
        "of them. If they have more, silent clients and then the largest messages are refused.",
        section=_GRPC_SECTION,
        own=True,
    )
    grpc_infer_thread_count: int = option(
        2,
        "grpc-infer-thread-count",
        Kind("integer", _threads),
        "Threads for work that would delay all other calls: compression and decompression of large messages, "
        "repository control. Requests need none.",
        section=_GRPC_SECTION,
    )
    grpc_infer_response_compression_level: str = option(
        "none",
        "grpc-infer-response-compression-level",
        Kind("|".join(COMPRESSION_LEVELS), _compression, COMPRESSION_LEVELS),
        "Compression of the responses to inference calls, for clients that accept it.",
        section=_GRPC_SECTION,
    )
    grpc_use_ssl: bool = option(
        False,
        "grpc-use-ssl",
        BOOLEAN,
        "Whether clients must use TLS, which needs a certificate and a key.",
        section=_GRPC_SECTION,
    )
    grpc_use_ssl_mutual: bool = option(
        False,
        "grpc-use-ssl-mutual",
        BOOLEAN,
        "Whether clients must use TLS and have a certificate that one of the root certificates has signed.",
        section=_GRPC_SECTION,
    )
    grpc_server_cert: str = option(
        "",
        "grpc-server-cert",
        FILE,
        "File with the server's certificate in PEM, followed by those of its issuers; a change of it is noticed.",
        section=_GRPC_SECTION,
    )
    grpc_server_key: str = option(
        "",
        "grpc-server-key",
        FILE,
        "File with the certificate's key in PEM, without a password.",
        section=_GRPC_SECTION,
    )
    grpc_root_cert: str = option(
        "", "grpc-root-cert", FILE, "File with the root certificates of the clients in PEM.", section=_GRPC_SECTION
    )
    grpc_keepalive_time: int = option(
        7200000,
        "grpc-keepalive-time",
        integer(1),
        "Milliseconds of silence after which a client with a call is asked for a sign of life.",
        section=_GRPC_SECTION,
    )
    grpc_keepalive_timeout: int = option(
        20000,
        "grpc-keepalive-timeout",
        integer(1),
        "Milliseconds that it has to answer before its connection is closed.",
        section=_GRPC_SECTION,
    )
    grpc_keepalive_permit_without_calls: bool = option(
        False,
        "grpc-keepalive-permit-without-calls",
        BOOLEAN,
        "Whether both sides may ask for signs of life while there is no call.",
        section=_GRPC_SECTION,
    )
    grpc_http2_max_ping_strikes: int = option(
        2,
        "grpc-http2-max-ping-strikes",
        integer(0),
        "Pings of a client that may come too early before its connection is closed; 0: any number.",
        section=_GRPC_SECTION,
    )
    grpc_http2_min_recv_ping_interval_without_data: int = option(
        300000,
        "grpc-http2-min-recv-ping-interval-without-data",
        integer(0),
        "Milliseconds between the pings of a client to which nothing is sent meanwhile.",
        section=_GRPC_SECTION,
    )
    grpc_max_connection_age: int = option(
        0,
        "grpc-max-connection-age",
        integer(0),
        "Milliseconds, give or take a tenth, after which a connection takes no more calls, so that clients spread "
        "anew; 0: never.",
        section=_GRPC_SECTION,
    )
    grpc_max_connection_age_grace: int = option(
        0,
        "grpc-max-connection-age-grace",
        integer(0),
        "Milliseconds that the calls of such a connection then have; 0: as long as they take.",
        section=_GRPC_SECTION,
    )


# Source: docs/spec/server-options.md section 2 "Logging".


_LOGGING_SECTION = "Logging"
_ACCESS = Kind("true|false|all", lambda text: text if text == "all" else "true" if BOOLEAN.parse(text) else "false")


@dataclass(frozen=True, kw_only=True, repr=False)
class LoggingSettings:
    """Part of ServerSettings."""

    log_verbose: int = option(
        0, "log-verbose", LEVEL, "Show verbose messages up to this level; 0 shows none.", section=_LOGGING_SECTION
    )
    log_info: bool = option(
        True, "log-info", BOOLEAN, "Whether informational messages are shown.", section=_LOGGING_SECTION
    )
    log_warning: bool = option(True, "log-warning", BOOLEAN, "Whether warnings are shown.", section=_LOGGING_SECTION)
    log_error: bool = option(True, "log-error", BOOLEAN, "Whether errors are shown.", section=_LOGGING_SECTION)
    log_format: str = option(
        "default",
        "log-format",
        choice("log-format", "default", "ISO8601", "json"),
        "Format of a log line; json is one object per line.",
        section=_LOGGING_SECTION,
    )
    log_file: str = option(
        "",
        "log-file",
        FILE,
        "File to which the log is appended; SIGUSR1 has it opened again.",
        section=_LOGGING_SECTION,
        shown_default="the console: warnings and errors on stderr, other messages on stdout",
    )
    log_access: str = option(
        "false",
        "log-access",
        _ACCESS,
        "Whether requests are logged after their responses, with status, duration, request id, model and batch "
        "size: true logs all but health probes and scrapes of metrics, all logs those, too.",
        section=_LOGGING_SECTION,
        own=True,
    )
    log_escape: bool = option(
        True,
        "",
        NOT_ZERO,
        "Whether messages are quoted as JSON strings, so that no message can look like another log line; only 0 "
        "turns the quoting off.",
        section=_LOGGING_SECTION,
        variable="TRITON_SERVER_ESCAPE_LOG_MESSAGES",
    )

    @property
    def log_options(self) -> LogOptions:
        from core.observability.log import LogOptions

        return LogOptions(
            verbose=self.log_verbose,
            info=self.log_info,
            warning=self.log_warning,
            error=self.log_error,
            format=self.log_format,
            file=self.log_file,
            escape=self.log_escape,
            access=self.log_access,
        )


# Source: docs/spec/server-options.md section 2 "Metrics"; docs/spec/metrics-log.md.


_METRICS_SECTION = "Metrics"


@dataclass(frozen=True, kw_only=True, repr=False)
class MetricsSettings:
    """Part of ServerSettings."""

    allow_metrics: bool = option(
        True, "allow-metrics", BOOLEAN, "Whether the metrics port is opened.", section=_METRICS_SECTION
    )
    allow_gpu_metrics: bool = option(
        True, "allow-gpu-metrics", BOOLEAN, "Whether the metrics include the GPUs.", section=_METRICS_SECTION
    )
    allow_cpu_metrics: bool = option(
        True, "allow-cpu-metrics", BOOLEAN, "Whether the metrics include CPU and memory.", section=_METRICS_SECTION
    )
    metrics_address: str = option(
        "",
        "metrics-address",
        ADDRESS,
        "Address of the metrics port.",
        section=_METRICS_SECTION,
        shown_default="that of --http-address",
    )
    metrics_port: int = option(8002, "metrics-port", PORT, "The metrics port.", section=_METRICS_SECTION)
    metrics_interval_ms: float = option(
        2000.0,
        "metrics-interval-ms",
        number(1),
        "Milliseconds for which the metrics page shows the same hardware values before they are read again.",
        section=_METRICS_SECTION,
    )
    metrics_config: tuple[str, ...] = repeated(
        "metrics-config",
        setting("metrics-config", ""),
        "counter_latencies=false leaves out the request durations and keeps all model counters at 0; "
        "histogram_latencies=true adds histograms of the durations, summary_latencies=true their quantiles in the last "
        "minute; summary_quantiles names them, as in 0.5:0.05,0.99:0.001.",
        section=_METRICS_SECTION,
    )

    metrics_log: str = option(
        "none",
        "metrics-log",
        choice("metrics-log", "none", "emf", "gcp"),
        "Write metrics to stdout, for platforms that scrape no page. emf is the embedded metric format of CloudWatch, "
        "gcp the structure of Google Cloud Logging.",
        section=_METRICS_SECTION,
        own=True,
    )
    metrics_log_interval_secs: float = option(
        60.0,
        "metrics-log-interval-secs",
        number(1),
        "Seconds that a line of --metrics-log covers.",
        section=_METRICS_SECTION,
        own=True,
    )
    metrics_log_namespace: str = option(
        "Trident",
        "metrics-log-namespace",
        TEXT,
        "Namespace of the metrics in CloudWatch.",
        section=_METRICS_SECTION,
        own=True,
    )
    metrics_log_dimension: tuple[str, ...] = repeated(
        "metrics-log-dimension",
        setting("metrics-log-dimension", ""),
        "A dimension of all metrics in CloudWatch, or a label of the entries in Cloud Logging, such as "
        "endpoint=my-endpoint.",
        section=_METRICS_SECTION,
        own=True,
    )

    @property
    def metrics_log_dimensions(self) -> dict[str, str]:
        """The values of --metrics-log-dimension by name."""
        return split_metrics_settings(self.metrics_log_dimension)

    @property
    def metrics_settings(self) -> dict[str, str]:
        """The values of --metrics-config by name."""
        return split_metrics_settings(self.metrics_config)


def split_metrics_settings(texts: Iterable[str]) -> dict[str, str]:
    """Values of `<name>=<value>` by name; the last of several values for one name counts."""
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


# Source: docs/spec/server-options.md section 2 "SageMaker" and "Vertex AI".


NO_GROUPS = "none"
_PLATFORMS_SECTION = "Platform"
# The groups that infer or read; not those that change the server or show its configuration.
_PUBLIC = "health,metadata,inference,model-config,statistics,metrics"


def _port_range(text: str) -> str:
    try:
        parse_port_range(text)
    except ValueError as error:
        raise BadValue(f"--sagemaker-safe-port-range: {error}") from None
    return text


def _groups(text: str) -> str:
    from core.frontend.access import GROUPS

    for group in text.split(",") if text != NO_GROUPS else ():
        if group not in (*GROUPS, "metrics"):
            known = ", ".join((*GROUPS, "metrics"))
            raise BadValue(
                f"--public-routes: '{group}' is not a group of routes; the groups are {known}; or {NO_GROUPS}"
            )
    return text


def split_groups(public_routes: str) -> tuple[str, ...]:
    """The groups in a value of --public-routes."""
    return () if public_routes == NO_GROUPS else tuple(dict.fromkeys(public_routes.split(",")))


@dataclass(frozen=True, kw_only=True, repr=False)
class PlatformSettings:
    """Part of ServerSettings. The platforms' own variables are in `ServerSettings.sagemaker` and `.vertex`."""

    platform: str = option(
        "auto",
        "platform",
        choice("platform", "auto", "plain", "sagemaker", "vertex"),
        "The platform whose container this is. auto is vertex if AIP_MODE is set, sagemaker if a SAGEMAKER_* "
        "variable is set, or if no model repository is given and one of SageMaker's directories exists; otherwise "
        "plain.",
        section=_PLATFORMS_SECTION,
        own=True,
    )
    allow_sagemaker: bool = option(
        False, "allow-sagemaker", BOOLEAN, "Whether SageMaker's port is opened.", section=_PLATFORMS_SECTION
    )
    sagemaker_port: int = option(
        8080, "sagemaker-port", PORT, "SageMaker's port, at the address of --http-address.", section=_PLATFORMS_SECTION
    )
    sagemaker_safe_port_range: str = option(
        "",
        "sagemaker-safe-port-range",
        Kind("<low>-<high>", _port_range),
        "Range in which all other ports must lie.",
        section=_PLATFORMS_SECTION,
    )
    sagemaker_thread_count: int = option(
        8,
        "sagemaker-thread-count",
        integer(1),
        "As --http-thread-count, for SageMaker's port.",
        section=_PLATFORMS_SECTION,
    )
    sagemaker_model_root: str = option(
        "/opt/ml/model",
        "sagemaker-model-root",
        FOLDER,
        "Directory into which SageMaker unpacks the model of an endpoint.",
        section=_PLATFORMS_SECTION,
        own=True,
    )
    sagemaker_models_root: str = option(
        "/opt/ml/models",
        "sagemaker-models-root",
        FOLDER,
        "Directory into which SageMaker unpacks the models of a multi-model endpoint.",
        section=_PLATFORMS_SECTION,
        own=True,
    )
    sagemaker_memory_limit_mb: int = option(
        0,
        "sagemaker-memory-limit-mb",
        integer(0),
        "Memory limit, in megabytes, of the server with the models of a multi-model endpoint, if it is lower than "
        "the container's; 0: the container's limit.",
        section=_PLATFORMS_SECTION,
        own=True,
    )
    allow_vertex_ai: bool = option(
        False, "allow-vertex-ai", BOOLEAN, "Whether Vertex AI's port is opened.", section=_PLATFORMS_SECTION
    )
    vertex_ai_port: int = option(
        8080, "vertex-ai-port", PORT, "Vertex AI's port, at the address of --http-address.", section=_PLATFORMS_SECTION
    )
    vertex_ai_thread_count: int = option(
        8,
        "vertex-ai-thread-count",
        integer(1),
        "As --http-thread-count, for Vertex AI's port.",
        section=_PLATFORMS_SECTION,
    )
    vertex_ai_default_model: str = option(
        "",
        "vertex-ai-default-model",
        TEXT,
        "The model of requests to Vertex AI's predict route.",
        section=_PLATFORMS_SECTION,
        shown_default="the only model",
    )
    vertex_ai_payload: str = option(
        "auto",
        "vertex-ai-payload",
        choice("vertex-ai-payload", *PayloadKind),
        "Form of a JSON body on the predict route: instances, a request of the v2 protocol, an object for generate, or "
        "with auto the one that it looks like.",
        section=_PLATFORMS_SECTION,
        own=True,
    )
    vertex_ai_key_field: str = option(
        KEY_FIELD,
        "vertex-ai-key-field",
        TEXT,
        "Member of object instances that is not an input of the model but the key by which a batch job identifies "
        "them.",
        section=_PLATFORMS_SECTION,
        own=True,
    )
    vertex_ai_max_request_size: int = option(
        0,
        "vertex-ai-max-request-size",
        integer(0),
        "Maximum size of a request body on the predict route, in bytes; 0: only --http-max-input-size applies.",
        section=_PLATFORMS_SECTION,
        own=True,
    )
    vertex_ai_max_response_size: int = option(
        0,
        "vertex-ai-max-response-size",
        integer(0),
        "Maximum size of a response body of the predict route, in bytes; 0: no limit.",
        section=_PLATFORMS_SECTION,
        own=True,
    )
    vertex_ai_timeout_secs: float = option(
        0.0,
        "vertex-ai-timeout-secs",
        number(0),
        "Seconds after which a request to the predict route is answered with 503, and does not run if it is still "
        "queued; 0: no timeout.",
        section=_PLATFORMS_SECTION,
        own=True,
    )
    public_routes: str = option(
        _PUBLIC,
        "public-routes",
        Kind("<group>[,<group>...]", _groups),
        "Groups of the v2 protocol's routes, named as for --http-restricted-api, and metrics, that Vertex AI's port "
        "serves besides the platform's own, or none. With an invoke route prefix everyone who may call the endpoint "
        "may call them.",
        section=_PLATFORMS_SECTION,
        own=True,
    )


# Source: docs/spec/schedulers.md section 3.6, docs/spec/server-options.md section 2 "rate limiter".


_RATE_LIMITER_SECTION = "Rate limiter"
_FORM = "<resource name>:<count>[:<device>]"
_COUNT = integer(0, INT32_MAX)
_OFF = "off"


def resource_limit(text: str) -> ResourceLimit:
    """One value of --rate-limit-resource. Raises BadValue."""
    name, *numbers = text.split(":")
    if not name or not 1 <= len(numbers) <= 2:
        raise BadValue(
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. "
            f"Got {text}"
        )
    count, *device = (_COUNT.parse(number) for number in numbers)
    return ResourceLimit(name, count, device[0] if device else None)


def _resource(text: str) -> str:
    resource_limit(text)
    return text


@dataclass(frozen=True, kw_only=True, repr=False)
class RateLimiterSettings:
    """Part of ServerSettings."""

    rate_limit: str = option(
        _OFF,
        "rate-limit",
        choice("rate-limit", "execution_count", _OFF),
        "execution_count lets instances take turns at the resources of instance_group.rate_limiter; off ignores them.",
        section=_RATE_LIMITER_SECTION,
    )
    rate_limit_resource: tuple[str, ...] = repeated(
        "rate-limit-resource",
        Kind(_FORM, _resource),
        "Copies of a resource, on one device or on each. Without it as many as the neediest instance holds.",
        section=_RATE_LIMITER_SECTION,
    )

    @property
    def resource_limits(self) -> tuple[ResourceLimit, ...] | None:
        """The explicit limits of the rate limiter; None without a rate limiter."""
        if self.rate_limit == _OFF:
            return None
        return tuple(resource_limit(text) for text in self.rate_limit_resource)


# Source: docs/spec/server-options.md section 2, docs/spec/repository.md sections 1.3 and 1.10.


_REPOSITORY_SECTION = "Model repository"


@dataclass(frozen=True, kw_only=True, repr=False)
class RepositorySettings:
    """Part of ServerSettings."""

    model_repository: tuple[str, ...] = repeated(
        "model-repository",
        REPOSITORY,
        "Model repository with one directory per model: a local directory, s3://bucket/prefix, "
        "s3://host:port/bucket/prefix or gs://bucket/prefix.",
        section=_REPOSITORY_SECTION,
        aliases=("model-store",),
    )
    model_control_mode: str = option(
        "none",
        "model-control-mode",
        choice("model-control-mode", "none", "poll", "explicit"),
        "Which models are loaded: all at startup (none), all at startup and again when their repository changes "
        "(poll), or those of --load-model at startup and others on request (explicit).",
        section=_REPOSITORY_SECTION,
    )
    load_model: tuple[str, ...] = repeated(
        "load-model",
        TEXT,
        "Model to load at startup, * for all; only with --model-control-mode=explicit.",
        section=_REPOSITORY_SECTION,
    )
    repository_poll_secs: int = option(
        15,
        "repository-poll-secs",
        at_least(0),
        "Seconds between two polls of the repositories; only with --model-control-mode=poll.",
        section=_REPOSITORY_SECTION,
    )
    model_namespacing: bool = option(
        False,
        "model-namespacing",
        BOOLEAN,
        "Whether several repositories may contain models of the same name; such a model cannot be requested by its "
        "name alone.",
        section=_REPOSITORY_SECTION,
    )
    model_cache_directory: str = option(
        "",
        "model-cache-directory",
        FOLDER,
        "Directory in which models from cloud storage are cached, also for later starts and other servers.",
        section=_REPOSITORY_SECTION,
        shown_default="$TRITON_AWS_MOUNT_DIRECTORY, $TRITON_GCS_MOUNT_DIRECTORY or ~/.cache/trident",
        own=True,
    )
    model_cache_bytes: int = option(
        68719476736,
        "model-cache-bytes",
        integer(0, INT64_MAX),
        "Size in bytes of that directory above which unused models are removed from it, the least recently used "
        "first; 0: no limit.",
        section=_REPOSITORY_SECTION,
        own=True,
    )
    aws_mount_directory: str = option(
        "",
        "",
        FOLDER,
        "Directory for models from cloud storage if --model-cache-directory is not given.",
        section=_REPOSITORY_SECTION,
        variable="TRITON_AWS_MOUNT_DIRECTORY",
    )
    gcs_mount_directory: str = option(
        "",
        "",
        FOLDER,
        "The same if TRITON_AWS_MOUNT_DIRECTORY is not set either.",
        section=_REPOSITORY_SECTION,
        variable="TRITON_GCS_MOUNT_DIRECTORY",
    )
    cloud_credential_path: str = option(
        "",
        "",
        FILE,
        "File with credentials for cloud storage, by path; without it the credentials of each platform's own tools "
        "are used.",
        section=_REPOSITORY_SECTION,
        variable="TRITON_CLOUD_CREDENTIAL_PATH",
    )
    disable_auto_complete_config: bool = option(
        False,
        "disable-auto-complete-config",
        FLAG,
        "Take each model configuration as written, instead of completing it from the model file.",
        section=_REPOSITORY_SECTION,
    )
    strict_model_config: bool = option(
        False,
        "strict-model-config",
        BOOLEAN,
        "Deprecated: true means --disable-auto-complete-config.",
        section=_REPOSITORY_SECTION,
    )
    model_config_name: str = option(
        "",
        "model-config-name",
        TEXT,
        "Use configs/<name>.pbtxt of a model if it exists, otherwise config.pbtxt.",
        section=_REPOSITORY_SECTION,
    )
    single_model: str = option(
        "",
        "single-model",
        TEXT,
        "The repository may also be a single model, as its folder or as a folder that contains model.onnx: serve it "
        "under this name.",
        section=_REPOSITORY_SECTION,
        own=True,
    )
    model_load_thread_count: int = option(
        4,
        "model-load-thread-count",
        at_least(1),
        "Number of models that are loaded at the same time. A value below 1 counts as 1.",
        section=_REPOSITORY_SECTION,
    )
    model_load_retry_count: int = option(
        0,
        "model-load-retry-count",
        at_least(0),
        "Number of further attempts to load a model after a failure. A negative value counts as 0.",
        section=_REPOSITORY_SECTION,
    )
    model_unload_timeout_secs: float = option(
        300.0,
        "model-unload-timeout-secs",
        number(0),
        "Seconds that requests in flight have to finish when a model is unloaded or replaced. Then those that wait are "
        "refused, and the processes of a Python model that still execute are ended. 0: no limit.",
        section=_REPOSITORY_SECTION,
        own=True,
    )


# Source: docs/spec/schedulers.md section 3.7, docs/spec/server-options.md section 2 "Cache".


_RESPONSE_CACHE_SECTION = "Response cache"
_CACHE_FORM = "<cache name>,<setting>=<value>"
_LOCAL, _REDIS = "local", "redis"
_FORMS = "local,size=<bytes> or redis,host=<host>,port=<port>"
_MILLISECONDS = integer(0)
_REDIS_KINDS: Mapping[str, Kind[Any]] = {
    "host": TEXT,
    "port": PORT,
    "user": TEXT,
    "password": TEXT,
    "db": integer(0),
    "connect_timeout": _MILLISECONDS,
    "socket_timeout": _MILLISECONDS,
    "pool_size": integer(1, 64),
    "lookup_timeout": integer(1),
    # A request that waits for a connection spends its lookup_timeout.
    "wait_timeout": _MILLISECONDS,
    "tls_enabled": BOOLEAN,
    "cert": TEXT,
    "key": TEXT,
    "cacert": TEXT,
    "cacert_dir": TEXT,
}
_REDIS_NAMES = frozenset(each.name for each in fields(RedisOptions))
# Triton takes one setting at a time; here several may follow each other. A password may have commas.
_NEXT_SETTING = re.compile(rf",(?=(?:{'|'.join(_REDIS_KINDS)})=)")


def split_cache_setting(text: str) -> tuple[str, dict[str, Any]]:
    """The cache that one value of --cache-config is about, and its settings by name. Raises BadValue."""
    cache, _, rest = text.partition(",")
    parts = _NEXT_SETTING.split(rest) if cache == _REDIS else [rest]
    pairs = [part.partition("=")[::2] for part in parts]
    if not cache or not all(name and value for name, value in pairs):
        # It may be a password that is not in its place.
        raise BadValue(
            f"--cache-config option format is '{_CACHE_FORM}'. Got {text if cache != _REDIS else 'redis,...'}"
        )
    if cache == _LOCAL:
        return cache, dict([_local(*pair) for pair in pairs])
    if cache == _REDIS:
        return cache, dict([_redis(*pair) for pair in pairs])
    raise BadValue(f"there is no response cache '{cache}': use {_FORMS}")


def _local(name: str, value: str) -> tuple[str, int]:
    if name != "size":
        raise BadValue(f"the response cache 'local' has no setting '{name}': use local,size=<bytes>")
    if not value.isascii() or not value.isdigit() or not 0 < int(value[:20]) <= INT64_MAX:
        raise BadValue(
            "Failed to initialize LocalCache: config didn't contain a valid 'size' field. "
            f"It takes a number of bytes. Got {value}"
        )
    return name, int(value)


def _redis(name: str, value: str) -> tuple[str, Any]:
    if name not in _REDIS_KINDS:
        known = ", ".join(_REDIS_KINDS)
        raise BadValue(f"the response cache 'redis' has no setting '{name}': it has {known}")
    try:
        return name, _REDIS_KINDS[name].parse(value)
    except BadValue as error:
        raise BadValue(f"the setting '{name}' of the response cache 'redis': {error}") from None


def _cache_setting(text: str) -> str:
    split_cache_setting(text)
    return text


@dataclass(frozen=True, kw_only=True, repr=False)
class ResponseCacheSettings:
    """Part of ServerSettings."""

    cache_config: tuple[str, ...] = repeated(
        "cache-config",
        Kind(_CACHE_FORM, _cache_setting),
        "local,size=<bytes> keeps responses in that much memory, redis,host=<host>,port=<port> in a Redis server that "
        "several servers share, for models with response_cache { enable: true }.",
        section=_RESPONSE_CACHE_SECTION,
        secret=True,
    )
    response_cache_byte_size: int = option(
        0,
        "response-cache-byte-size",
        integer(0, INT64_MAX),
        "The same as --cache-config=local,size=<bytes>, which is the newer form; 0 is no cache.",
        section=_RESPONSE_CACHE_SECTION,
    )
    redis_username: str = option(
        "",
        "",
        TEXT,
        "User of Redis, if --cache-config has no user.",
        section=_RESPONSE_CACHE_SECTION,
        variable="TRITONCACHE_REDIS_USERNAME",
    )
    redis_password: str = option(
        "",
        "",
        TEXT,
        "Password for Redis, if --cache-config has none. Others can read a command line, but not a variable.",
        section=_RESPONSE_CACHE_SECTION,
        variable="TRITONCACHE_REDIS_PASSWORD",
        secret=True,
    )

    def cache_settings(self) -> dict[str, dict[str, Any]]:
        """The settings that --cache-config gives to each cache; the last of several values counts."""
        found: dict[str, dict[str, Any]] = {}
        for text in self.cache_config:
            cache, given = split_cache_setting(text)
            found[cache] = {**found.get(cache, {}), **given}
        return found

    @property
    def response_cache_bytes(self) -> int:
        """The size of the response cache in memory, in bytes; 0 is none."""
        local = self.cache_settings().get(_LOCAL, {})
        return int(local.get("size", self.response_cache_byte_size))

    @property
    def redis_options(self) -> RedisOptions | None:
        """The response cache in Redis; None without one. Raises TypeError without a host."""
        given = self.cache_settings().get(_REDIS)
        if given is None:
            return None
        known = {name: value for name, value in given.items() if name in _REDIS_NAMES}
        return RedisOptions(**{"user": self.redis_username, "password": self.redis_password, **known})


# Source: docs/spec/schedulers.md.


_TESTS = "For test suites"
_STREAMS = "Streams of responses"


@dataclass(frozen=True, kw_only=True, repr=False)
class SchedulingSettings:
    """Part of ServerSettings."""

    response_window_count: int = option(
        DEFAULT_WINDOW.responses,
        "response-window-count",
        integer(1, INT64_MAX),
        "Responses to a request that its model may send before the client has taken them.",
        section=_STREAMS,
        own=True,
    )
    response_window_bytes: int = option(
        DEFAULT_WINDOW.nbytes,
        "response-window-bytes",
        integer(1, INT64_MAX),
        "Bytes of responses to a request after which its model waits until the client has taken some.",
        section=_STREAMS,
        own=True,
    )
    delay_scheduler: int = option(
        0,
        "",
        integer(0, INT64_MAX),
        "Hold the first batch of every model with dynamic or sequence batching until this many requests are queued.",
        section=_TESTS,
        variable="TRITONSERVER_DELAY_SCHEDULER",
    )
    backlog_delay_scheduler: int = option(
        0,
        "",
        integer(0, INT64_MAX),
        "As TRITONSERVER_DELAY_SCHEDULER, for models with direct sequence batching: so many requests must wait in the "
        "backlog, too.",
        section=_TESTS,
        variable="TRITONSERVER_BACKLOG_DELAY_SCHEDULER",
    )


# Source: docs/spec/server-options.md section 2 "Tracing".


_TRACING_SECTION = "Tracing"


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
        section=_TRACING_SECTION,
    )
    trace_file: str = option(
        "", "trace-file", FILE, "Deprecated: --trace-config triton,file=FILE.", section=_TRACING_SECTION
    )
    trace_level: tuple[str, ...] = repeated(
        "trace-level", TEXT, "Deprecated: --trace-config level=LEVEL.", section=_TRACING_SECTION
    )
    trace_rate: int = option(
        1000, "trace-rate", at_least(0), "Deprecated: --trace-config rate=N.", section=_TRACING_SECTION
    )
    trace_count: int = option(
        -1, "trace-count", INTEGER, "Deprecated: --trace-config count=N.", section=_TRACING_SECTION
    )
    trace_log_frequency: int = option(
        0,
        "trace-log-frequency",
        at_least(0),
        "Deprecated: --trace-config triton,log-frequency=N.",
        section=_TRACING_SECTION,
    )
    otel_queue_size: str = option(
        "",
        "",
        TEXT,
        "Spans that may wait for the collector, unless --trace-config opentelemetry,bsp_max_queue_size says so.",
        section=_TRACING_SECTION,
        variable="OTEL_BSP_MAX_QUEUE_SIZE",
        shown_default="2048",
    )
    otel_schedule_delay: str = option(
        "",
        "",
        TEXT,
        "Milliseconds after which spans are sent, unless --trace-config opentelemetry,bsp_schedule_delay says so.",
        section=_TRACING_SECTION,
        variable="OTEL_BSP_SCHEDULE_DELAY",
        shown_default="5000",
    )
    otel_batch_size: str = option(
        "",
        "",
        TEXT,
        "Spans that are sent together, unless --trace-config opentelemetry,bsp_max_export_batch_size says so.",
        section=_TRACING_SECTION,
        variable="OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
        shown_default="512",
    )

    @property
    def trace_options(self) -> TraceOptions:
        """Raises BadOption for an invalid value."""
        from app.settings.trace_config import trace_options

        return trace_options(self)


# Source: docs/spec/server-options.md section 2.


def _response_pool(text: str) -> int:
    size = INTEGER.parse(text)
    if size <= 0:
        raise BadValue("Error: --grpc-max-response-pool-size must be greater than 0.")
    return size


_UNUSED: dict[str, dict[str, Kind[Any]]] = {
    "Model repository": {
        "model-load-gpu-limit": pair("model-load-gpu-limit", "device id", "fraction"),
        "enable-peer-access": BOOLEAN,
        "repoagent-directory": FOLDER,
    },
    "gRPC": {
        "grpc-infer-allocation-pool-size": INTEGER,
        "grpc-max-response-pool-size": Kind("integer", _response_pool),
        "grpc-http2-max-pings-without-data": INTEGER,
    },
    "Memory, devices": {
        "cache-directory": FOLDER,
        "pinned-memory-pool-byte-size": INTEGER64,
        "cuda-memory-pool-byte-size": pair("cuda-memory-pool-byte-size", "device id", "bytes"),
        "cuda-virtual-address-size": pair("cuda-virtual-address-size", "device id", "bytes"),
        "buffer-manager-thread-count": INTEGER,
        "host-policy": setting("host-policy", "policy name"),
    },
}
_REPEATABLE = frozenset(
    {
        "model-load-gpu-limit",
        "cuda-memory-pool-byte-size",
        "cuda-virtual-address-size",
        "host-policy",
    }
)


def _options() -> Iterator[Option]:
    for section, kinds in _UNUSED.items():
        for flag, kind in kinds.items():
            yield Option(
                flag=flag,
                kind=kind,
                help="",
                section=section,
                variable=variable_of(flag),
                repeatable=flag in _REPEATABLE,
            )


UNUSED_OPTIONS: tuple[Option, ...] = tuple(_options())
