"""Every option of the server as a row, in the groups and the order of the help text.

`ServerSettings` is composed of the groups. Kinds of values that only one option has come first.

Source: docs/spec/server-options.md section 2, docs/spec/repository.md sections 1.3 and 1.10, docs/spec/schedulers.md,
docs/spec/grpc.md section 6, docs/spec/metrics-log.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trident.adapters.common.options import (
    ADDRESS,
    BOOLEAN,
    FILE,
    FOLDER,
    INT32_MAX,
    INT64_MAX,
    INTEGER,
    INTEGER64,
    LEVEL,
    NOT_ZERO,
    PORT,
    REPOSITORY,
    SWITCH,
    TEXT,
    BadValue,
    Kind,
    Option,
    at_least,
    checked,
    choice,
    group,
    integer,
    number,
    option,
    pair,
    repeated,
    setting,
)
from trident.adapters.platforms import VARIABLE, platforms
from trident.app.process.environment import process_environment
from trident.core.errors import ConfigInvalid
from trident.core.options import DEFAULT_WINDOW, RedisOptions, ResourceLimit, parse_quantiles
from trident.core.repository.location import parse_location

if TYPE_CHECKING:
    from trident.core.observability.log import LogOptions


def _threads(text: str) -> int:
    count = INTEGER.parse(text)
    if not 2 <= count <= 128:
        raise BadValue("invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128.")
    return count


def _config_name(text: str) -> str:
    if "/" in text or "\0" in text:
        raise BadValue(f"'{text}' is a path: name a file in the folder configs of the models, without .pbtxt")
    return text


def _response_pool(text: str) -> int:
    size = INTEGER.parse(text)
    if size <= 0:
        raise BadValue("Error: --grpc-max-response-pool-size must be greater than 0.")
    return size


# A boolean, as in tritonserver, or another word.
_STRICTNESS = Kind(
    "auto|true|false",
    lambda text: text if text == "auto" else "true" if BOOLEAN.parse(text) else "false",
    ("auto", "true", "false"),
)
_ACCESS = Kind("true|false|all", lambda text: text if text == "all" else "true" if BOOLEAN.parse(text) else "false")
_ENGINES = Kind("<number>|auto", lambda text: text if text == "auto" else str(integer(1, 64).parse(text)), ("auto",))
_WORKERS = Kind(
    "<number>|auto",
    lambda text: "auto" if text.lower() == "auto" else str(integer(0, 256).parse(text)),
    ("auto",),
)
_THREADS = Kind("integer", _threads)
_COMPRESSION = choice("grpc_infer_response_compression_level", "none", "low", "medium", "high")


def named_values(texts: Iterable[str]) -> dict[str, str]:
    """Values of `<name>=<value>` by name; the last of several values for one name counts."""
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def split_backend_setting(text: str) -> tuple[str, str, str]:
    """Backend ("" for all), name and value of one value of --backend-config. Raises BadValue.

    Each `plugin=NAME=PATH` is a setting of its own, `plugin=NAME`.
    """
    backend, comma, rest = text.partition(",") if "," in text else ("", "", text)
    name, equals, value = rest.partition("=")
    if name == "plugin" and "=" in value:
        plugin, _, value = value.partition("=")
        name = f"plugin={plugin}"
    if (comma and not backend) or not (name and equals and value):
        raise BadValue(f"--backend-config option format is '<backend name>,<setting>=<value>'. Got {text}")
    if name == "default-max-batch-size":
        integer(0).parse(value)
    return backend, name, value


def split_backend_settings(texts: Iterable[str]) -> dict[str, dict[str, str]]:
    """Values of --backend-config by backend and name; the last of several values for one name counts."""
    settings: dict[str, dict[str, str]] = {}
    for text in texts:
        backend, name, value = split_backend_setting(text)
        settings.setdefault(backend, {})[name] = value
    return settings


BACKEND_SETTING = checked("[<backend>,]<setting>=<value>", split_backend_setting)


def resource_limit(text: str) -> ResourceLimit:
    """One value of --rate-limit-resource. Raises BadValue."""
    name, *numbers = text.split(":")
    if not name or not 1 <= len(numbers) <= 2:
        raise BadValue(
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. "
            f"Got {text}"
        )
    count, *device = (integer(0).parse(number) for number in numbers)
    return ResourceLimit(name, count, device[0] if device else None)


def _gpu_memory(text: str) -> str:
    try:
        return text if text in ("auto", "none") else str(integer(1, INT64_MAX).parse(text))
    except BadValue:
        raise BadValue(
            f"invalid argument for --gpu-memory-per-model: '{text}' is not auto, none or a number of bytes"
        ) from None


_UNITS = {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40, "": 1}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([KMGT]I?B?|%|)", re.ASCII | re.IGNORECASE)


def _model_memory(text: str) -> str:
    """`auto`, a number of bytes, or percent with their sign. Raises BadValue."""
    found = _SIZE.fullmatch(text.strip())
    if text == "auto" or found is None:
        if text == "auto":
            return text
        raise BadValue(f"invalid argument for --model-memory: '{text}' is not auto, a size such as 4GiB, or 50%")
    amount, unit = float(found[1]), found[2].upper()
    if unit == "%":
        if not 0 < amount <= 100:
            raise BadValue(f"invalid argument for --model-memory: '{text}' is not above 0% and up to 100%")
        return f"{amount:g}%"
    size = int(amount * _UNITS[f"{unit[0]}IB" if unit else ""])
    if not 0 < size <= INT64_MAX:
        raise BadValue(f"invalid argument for --model-memory: '{text}' is not above 0 bytes")
    return str(size)


_RESOURCE = checked("<resource name>:<count>[:<device>]", resource_limit)


def _payload_target(text: str) -> str:
    """A folder, the URI of an object store or an http(s) URL. Raises BadValue."""
    url = urlsplit(text)
    if url.scheme not in ("http", "https"):
        try:
            return parse_location(text).text if text else ""
        except ConfigInvalid as error:
            shown = error.message.replace("model repository", "payload log")
            raise BadValue(f"{shown}; give a folder, s3://, gs://, as:// or http(s)://") from None
    if not url.hostname or "@" in url.netloc:  # it may be a password
        raise BadValue("invalid argument for --payload-log: expected http[s]://host[:port][/path], without credentials")
    return text


_LATENCIES = ("counter_latencies", "histogram_latencies", "summary_latencies")
_METRICS_SETTING = setting("metrics-config", "", *_LATENCIES, "summary_quantiles")


def _metrics_setting(text: str) -> str:
    """One value of --metrics-config, with `true` or `false` for a boolean. Raises BadValue."""
    name, _, value = _METRICS_SETTING.parse(text).partition("=")
    if name == "summary_quantiles":
        try:
            parse_quantiles(value)
        except ValueError as error:
            raise BadValue(str(error)) from None
    return f"{name}={str(BOOLEAN.parse(value)).lower()}" if name in _LATENCIES else text


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
        # It may be a misplaced password.
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


_CACHE = checked(_CACHE_FORM, split_cache_setting)


PLAIN = "plain"
PLATFORMS = platforms(process_environment().get(VARIABLE, ""))
_SHOWN_BY = "; ".join(f"{each.name} if {each.shown_by}" for each in PLATFORMS)

# A row is an option in as few lines as it needs; the formatter would give each argument a line of its own.
# fmt: off


@group("Model repository")
class RepositorySettings:
    model_repository: tuple[str, ...] = repeated(REPOSITORY,
        "Model repository with a directory for each model: local, s3://bucket/prefix, "
        "s3://host:port/bucket/prefix, gs://bucket/prefix or as://account/container/prefix.", aliases=("model-store",))
    model_control_mode: str = option("none", choice("model-control-mode", "none", "poll", "explicit", "demand"),
        "Models that are loaded: all at startup (none), also after changes of their repository "
        "(poll), those of --load-model and those that clients request (explicit), or those of "
        "--load-model and whatever a request needs (demand).")
    load_model: tuple[str, ...] = repeated(TEXT,
        "Model to load at startup, * for all; only with --model-control-mode=explicit or demand, "
        "which never lets go of it.")
    repository_poll_secs: int = option(15, at_least(0),
        "Seconds between two polls; only with --model-control-mode=poll, and for the names of models with demand.")
    model_memory: str = option("auto", Kind("auto|<bytes>|<percent>%", _model_memory, ("auto",)),
        "Memory that models may take together, such as 4GiB, or 50% of the container's and of each GPU's; only with "
        "--model-control-mode=demand. auto: what is free when the server has started.", own=True)
    model_idle_secs: float = option(0.0, number(0),
        "Seconds without requests after which a model is let go, 0: only when others need its memory; "
        "only with --model-control-mode=demand. A model's parameter IDLE_SECS is stronger.", own=True)
    reload: bool = option(False, SWITCH,
        "Load a changed model within a second, for its author; the old version serves until the new one can. This is "
        "--model-control-mode=poll with a short interval.", own=True)
    model_namespacing: bool = option(False, BOOLEAN,
        "Allow models of the same name in several repositories; requests must then say which.")
    model_cache_directory: str = option("", FOLDER,
        "Cache of models from cloud storage, kept for later starts and other servers.",
        shown_default="$TRITON_AWS_MOUNT_DIRECTORY, $TRITON_GCS_MOUNT_DIRECTORY, $TRITON_AZURE_MOUNT_DIRECTORY or "
        "~/.cache/trident", own=True)
    model_cache_bytes: int = option(68719476736, integer(0, INT64_MAX),
        "Size of that cache in bytes, above which the least recently used models are removed; 0: no limit.", own=True)
    aws_mount_directory: str = option("", FOLDER,
        "Directory for models from cloud storage if --model-cache-directory is not given.",
        variable="TRITON_AWS_MOUNT_DIRECTORY")
    gcs_mount_directory: str = option("", FOLDER,
        "The same if TRITON_AWS_MOUNT_DIRECTORY is not set either.", variable="TRITON_GCS_MOUNT_DIRECTORY")
    azure_mount_directory: str = option("", FOLDER,
        "The same if both are not set.", variable="TRITON_AZURE_MOUNT_DIRECTORY")
    cloud_credential_path: str = option("", FILE,
        "Credentials for cloud storage by path; default: those of each platform's tools.",
        variable="TRITON_CLOUD_CREDENTIAL_PATH")
    model_signature: str = option("", FILE,
        "Public key in PEM. A model whose files it has not signed (OpenSSF model signing, in its file "
        "model.sig) is refused before any of them is read.", own=True)
    disable_auto_complete_config: bool = option(False, SWITCH,
        "Take each model configuration as written, instead of completing it from the model file.")
    strict_model_config: bool = option(False, BOOLEAN, "Deprecated: true means --disable-auto-complete-config.")
    model_config_name: str = option("", Kind("string", _config_name),
        "Use configs/<name>.pbtxt of a model if it exists, otherwise config.pbtxt.")
    single_model: str = option("", TEXT,
        "Name under which to serve a repository that is a single model: its folder, or a folder "
        "with model.onnx. Default: INFERENCE_SERVICE_NAME, which KServe sets.", own=True)
    model_load_thread_count: int = option(4, at_least(1), "Models that are loaded at the same time; at least 1.")
    model_load_retry_count: int = option(0, at_least(0), "Further attempts after a failed load.")
    model_load_timeout_secs: float = option(0.0, number(0),
        "Seconds that a step of a load may take: completing a configuration, loading weights, starting an "
        "instance, an execution of a warmup sample, a golden request. Then the load fails. 0: no limit.", own=True)
    model_unload_timeout_secs: float = option(300.0, number(0),
        "Seconds for requests in flight when a model is unloaded or replaced. Then waiting requests "
        "are refused, busy Python processes and executions of ONNX Runtime ended. 0: no limit.", own=True)


@group("Platform")
class PlatformChoice:
    """Part of ServerSettings. The options of each platform are in its row."""

    platform: str = option("auto", choice("platform", "auto", PLAIN, *(each.name for each in PLATFORMS)),
        f"The platform whose container this is. auto is {_SHOWN_BY}; otherwise {PLAIN}.", own=True)
    platforms: str = option("", TEXT,
        "Further platforms, as module:ATTRIBUTE, separated by commas. Each has options of its own.", variable=VARIABLE)


@group("Server")
class GeneralSettings:
    server_id: str = option("triton", TEXT, "Name of the server in its metadata.", flag="id")
    exit_on_error: bool = option(True, BOOLEAN,
        "Exit with status 1 when a model fails to load at startup; otherwise serve the others.")
    exit_timeout_secs: int = option(30, at_least(0), "Seconds for requests in flight when the server stops.")
    shutdown_grace_secs: float = option(2.0, number(0),
        "Seconds after SIGTERM in which the server answers while unready, so that load balancers notice.", own=True)
    engines: str = option("1", _ENGINES,
        "Processes that run the models behind the same HTTP workers, each with its own sessions; "
        "auto: by the number of cores.", own=True)
    pin_engines: bool = option(False, BOOLEAN, "Keep each of several engines on its share of the processors.", own=True)
    error_hints: str = option("", choice("error-hints", "text", "field", "off"),
        "How clients get the hint that cures an error. text: at the end of the error's text, which is all that "
        "tritonclient shows. field: beside it, in the HTTP body and the header or metadata Trident-Hint. off: not at "
        "all.", own=True, shown_default="text if stdout is a terminal, otherwise field")
    response_timing: bool = option(False, BOOLEAN,
        "Add queue and compute times and the batch size to every answer: in the header Server-Timing, in a platform's "
        "custom attributes, and as response parameters if a request asks with 'timing': true.", own=True)
    allow_client_shm: bool = option(False, BOOLEAN, "Let clients register shared memory for inputs and outputs.")
    client_shm_map_bytes: int = option(0, integer(0, INT64_MAX),
        "Map tensors of at least this size in clients' shared memory instead of copying them. A "
        "client that shrinks the memory during an execution then crashes the engine. 0: never.", own=True)
    strict_readiness: str = option("auto", _STRICTNESS,
        "Ready when: every model of the start serves, whatever later loads do (auto); every version "
        "of every model is ready (true); as soon as the server has started (false).")


@group("HTTP")
class HttpSettings:
    allow_http: bool = option(True, BOOLEAN, "Open the HTTP port.")
    http_address: str = option("0.0.0.0", ADDRESS, "Address of the HTTP port.")
    http_port: int = option(8000, PORT, "The HTTP port.")
    reuse_http_port: bool = option(False, BOOLEAN, "Let other servers listen on the same port.")
    http_thread_count: int = option(8, integer(1),
        "Threads for work that would delay other requests: compression of large bodies, repository control.")
    http_max_input_size: int = option(67108864, INTEGER64, "Largest request body in bytes, sent and decompressed.")
    console: bool = option(False, BOOLEAN,
        "Serve the page /console: models and their load, a form to try them, the log and traces. "
        "Tokens protect it, if there are any. `trident serve FILE` has it unless it is false.", own=True)
    health_body: str = option("empty", choice("health-body", "empty", "json"),
        "Body of healthy answers: empty, as in Triton, or JSON such as {\"ready\":true}, for clients "
        "of KServe.", own=True)
    http_header_forward_pattern: str = option("", TEXT,
        "RE2 expression, ignoring case, for headers that become parameters of the request.")
    http_restricted_api: tuple[str, ...] = repeated(TEXT,
        "Groups of routes, and the header that a request to them must have: <group>[,<group>...]:<header>=<value>.",
        secret=True)
    http_use_ssl: bool = option(False, BOOLEAN, "Require TLS, with a certificate and a key.", own=True)
    http_use_ssl_mutual: bool = option(False, BOOLEAN,
        "Require TLS and a client certificate that a root certificate has signed.", own=True)
    http_server_cert: str = option("", FILE,
        "The server's certificate and those of its issuers in PEM; read again when it changes.", own=True)
    http_server_key: str = option("", FILE, "The certificate's key in PEM, without a password.", own=True)
    http_root_cert: str = option("", FILE, "Root certificates of the clients in PEM.", own=True)
    http_max_unfinished_size: int = option(536870912, integer(1, 2**40),
        "Total bytes of bodies being received in a process, without the largest. Above it silent "
        "clients, then the largest bodies, are refused.", own=True)
    http_request_timeout_secs: float = option(60.0, number(0.001),
        "Seconds without a byte until a sending or reading client is disconnected.", own=True)
    http_keepalive_secs: float = option(600.0, number(0), "Seconds until an idle connection is closed.", own=True)
    http_workers: str = option("auto", _WORKERS,
        "HTTP processes in front of the engine; 0: one process does both; auto: by the number of cores.", own=True)
    http_worker_memory_bytes: int = option(256 << 20, integer(1 << 20, INT64_MAX),
        "Memory that each HTTP worker shares with the engine for large tensors, half for requests, "
        "half for responses. Only the used part is allocated.", own=True)


@group("gRPC")
class GrpcSettings:
    """Part of ServerSettings. Times are in milliseconds, as tritonserver's."""

    allow_grpc: bool = option(True, BOOLEAN, "Open the gRPC port.")
    grpc_address: str = option("0.0.0.0", ADDRESS,
        "Address of the gRPC port; unix:<path> is a Unix socket, without a port.")
    grpc_port: int = option(8001, PORT, "The gRPC port.")
    reuse_grpc_port: bool = option(False, BOOLEAN, "Let other servers listen on the same port.")
    grpc_header_forward_pattern: str = option("", TEXT,
        "RE2 expression, ignoring case, for metadata that becomes parameters of the request.")
    grpc_restricted_protocol: tuple[str, ...] = repeated(TEXT,
        "Groups of calls, and the metadata that a call of them must have: <group>[,<group>...]:<key>=<value>, sent as "
        "triton-grpc-protocol-<key>.", secret=True)
    grpc_reflection: bool = option(True, BOOLEAN,
        "Let clients such as grpcurl ask for services and messages.", own=True)
    grpc_max_message_size: int = option(2147483647, integer(1, 2147483647),
        "Largest received message in bytes, also decompressed.", own=True)
    grpc_max_unfinished_size: int = option(536870912, integer(1, 2**40),
        "Total bytes of messages being received in a process, without the largest. Above it silent "
        "clients, then the largest messages, are refused.", own=True)
    grpc_infer_thread_count: int = option(2, _THREADS,
        "Threads for work that would delay other calls: compression of large messages, repository control.")
    grpc_infer_response_compression_level: str = option("none", _COMPRESSION,
        "Compression of the responses to inference calls, for clients that accept it.")
    grpc_use_ssl: bool = option(False, BOOLEAN, "Require TLS, with a certificate and a key.")
    grpc_use_ssl_mutual: bool = option(False, BOOLEAN,
        "Require TLS and a client certificate that a root certificate has signed.")
    grpc_server_cert: str = option("", FILE,
        "The server's certificate and those of its issuers in PEM; read again when it changes.")
    grpc_server_key: str = option("", FILE, "The certificate's key in PEM, without a password.")
    grpc_root_cert: str = option("", FILE, "Root certificates of the clients in PEM.")
    grpc_keepalive_time: int = option(7200000, integer(1),
        "Milliseconds without data until a client with an open call is pinged.")
    grpc_keepalive_timeout: int = option(20000, integer(1),
        "Milliseconds to answer a ping before the connection is closed.")
    grpc_keepalive_permit_without_calls: bool = option(False, BOOLEAN, "Allow pings while there is no call.")
    grpc_http2_max_ping_strikes: int = option(2, integer(0),
        "Early pings of a client before its connection is closed; 0: any number.")
    grpc_http2_min_recv_ping_interval_without_data: int = option(300000, integer(0),
        "Shortest time in milliseconds between two pings of a client to which nothing is sent.")
    grpc_max_connection_age: int = option(0, integer(0),
        "Milliseconds, plus or minus 10 %, after which a connection accepts no more calls, so that "
        "clients reconnect and spread; 0: never.")
    grpc_max_connection_age_grace: int = option(0, integer(0), "Milliseconds for its calls to finish; 0: no limit.")


@group("Access")
class AccessSettings:
    auth_token_file: str = option("", FILE,
        "Bearer tokens that clients of the HTTP and gRPC ports must send, one a line; read again "
        "when it changes.", own=True)
    auth_token_scope: str = option("all", choice("auth-token-scope", "admin", "all"),
        "What needs a token: all but health checks (all), or only shared-memory, model-repository, "
        "trace and logging (admin).", own=True)


@group("Metrics")
class MetricsSettings:
    allow_metrics: bool = option(True, BOOLEAN, "Open the metrics port.")
    allow_gpu_metrics: bool = option(True, BOOLEAN, "Include the GPUs.")
    allow_cpu_metrics: bool = option(True, BOOLEAN, "Include CPU and memory.")
    metrics_address: str = option("", ADDRESS, "Address of the metrics port.", shown_default="that of --http-address")
    metrics_port: int = option(8002, PORT, "The metrics port.")
    http_metrics: bool = option(False, BOOLEAN,
        "Serve the metrics at /metrics of the HTTP port, too, where inference gateways read them.", own=True)
    metrics_interval_ms: float = option(2000.0, number(1), "Milliseconds between two readings of the hardware.")
    metrics_config: tuple[str, ...] = repeated(Kind("<setting>=<value>", _metrics_setting),
        "counter_latencies=false leaves out durations and keeps model counters at 0; "
        "histogram_latencies=true adds histograms, summary_latencies=true quantiles of the last "
        "minute, which summary_quantiles names, as in 0.5:0.05,0.99:0.001.")
    metrics_log: str = option("none", choice("metrics-log", "none", "emf", "gcp"),
        "Write metrics to stdout, for platforms that scrape nothing: emf for CloudWatch, gcp for "
        "Cloud Logging.", own=True)
    metrics_log_interval_secs: float = option(60.0, number(1), "Seconds that a line of --metrics-log covers.", own=True)
    metrics_log_namespace: str = option("Trident", TEXT, "Namespace of the metrics in CloudWatch.", own=True)
    metrics_log_dimension: tuple[str, ...] = repeated(setting("metrics-log-dimension", ""),
        "A dimension in CloudWatch, or a label in Cloud Logging, such as endpoint=my-endpoint.", own=True)

    @property
    def metrics_log_dimensions(self) -> dict[str, str]:
        return named_values(self.metrics_log_dimension)

    @property
    def metrics_settings(self) -> dict[str, str]:
        return named_values(self.metrics_config)


@group("Backends")
class BackendsSettings:
    backend_config: tuple[str, ...] = repeated(BACKEND_SETTING,
        "A setting of one backend, or of all backends without the name of one.")
    backend_directory: str = option("/opt/tritonserver/backends", FOLDER,
        "Folder of the backends that are written in Python, NAME/model.py each.")
    strict_python_outputs: bool = option(False, SWITCH,
        "Fail a request to a Python model whose outputs differ in name, datatype, shape or rows "
        "from the configuration; otherwise the log warns once.", own=True)
    min_supported_compute_capability: float = option(6.0, number(0),
        "Minimum CUDA compute capability of the GPUs that are used.")
    gpu_missing: str = option("error", choice("gpu-missing", "error", "cpu"),
        "A model that asks for a GPU (KIND_GPU) on a machine without one fails to load (error) or "
        "runs on the CPU with a warning (cpu).", own=True)
    gpu_memory_per_model: str = option("auto", Kind("auto|none|<bytes>", _gpu_memory, ("auto", "none")),
        "Bytes that a model may take on each GPU. auto: what is free at its load, less an eighth of what the other "
        "models took; larger loads are refused. none: nothing is limited, kept or refused.", own=True)
    gpu_memory_idle_secs: float = option(300.0, number(0),
        "Seconds without requests after which a model returns memory that only executions needed; "
        "0: only when a load needs it.", own=True)
    visible_gpus: str | None = option(None, TEXT,
        "GPUs to use, by number or UUID; an empty value hides all GPUs.",
        variable="CUDA_VISIBLE_DEVICES", shown_default="all", empty_counts=True)

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


@group("Response cache")
class ResponseCacheSettings:
    cache_config: tuple[str, ...] = repeated(_CACHE,
        "local,size=<bytes> keeps responses in memory, redis,host=<host>,port=<port> in a shared "
        "Redis, for models with response_cache { enable: true }.", secret=True)
    response_cache_byte_size: int = option(0, integer(0, INT64_MAX),
        "Older form of --cache-config=local,size=<bytes>; 0: no cache.")
    redis_username: str = option("", TEXT,
        "User of Redis, if --cache-config has no user.", variable="TRITONCACHE_REDIS_USERNAME")
    redis_password: str = option("", TEXT,
        "Password for Redis, if --cache-config has none. A command line is not secret, a variable "
        "is.", variable="TRITONCACHE_REDIS_PASSWORD", secret=True)

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


@group("Rate limiter")
class RateLimiterSettings:
    rate_limit: str = option("off", choice("rate-limit", "execution_count", "off"),
        "Whether instances take turns at the resources of instance_group.rate_limiter (execution_count) or not (off).")
    rate_limit_resource: tuple[str, ...] = repeated(_RESOURCE,
        "Copies of a resource, on one device or on each; default: the largest amount that one instance requests.")

    @property
    def resource_limits(self) -> tuple[ResourceLimit, ...] | None:
        """The explicit limits of the rate limiter; None without a rate limiter."""
        if self.rate_limit == "off":
            return None
        return tuple(resource_limit(text) for text in self.rate_limit_resource)


@group("Logging")
class LoggingSettings:
    log_verbose: int = option(0, LEVEL, "Show verbose messages up to this level; 0 shows none.")
    log_info: bool = option(True, BOOLEAN, "Show informational messages.")
    log_warning: bool = option(True, BOOLEAN, "Show warnings.")
    log_error: bool = option(True, BOOLEAN, "Show errors.")
    log_format: str = option("default", choice("log-format", "default", "ISO8601", "json"),
        "Format of a line; json is an object a line.")
    log_file: str = option("", FILE,
        "File to which the log is appended; SIGUSR1 opens it again.",
        shown_default="the console: warnings and errors on stderr, other messages on stdout")
    log_access: str = option("false", _ACCESS,
        "Log requests after their responses, with status, duration, id, model and batch size: all "
        "but health probes and scrapes (true), or those as well (all).", own=True)
    log_escape: bool = option(True, NOT_ZERO,
        "Quote messages as JSON strings, so that none can look like another line; only 0 turns it "
        "off.", variable="TRITON_SERVER_ESCAPE_LOG_MESSAGES")

    @property
    def log_options(self) -> LogOptions:
        from trident.core.observability.log import LogOptions

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


@group("Tracing")
class TracingSettings:
    trace_config: tuple[str, ...] = repeated(TEXT,
        "<setting>=<value>: mode=triton|opentelemetry, level=OFF|TIMESTAMPS|TENSORS, rate=N (one of "
        "N requests), count=N (at most N); triton,file=FILE, triton,log-frequency=N (traces in a "
        "file); opentelemetry,url=URL, opentelemetry,resource=KEY=VALUE, and "
        "opentelemetry,bsp_max_queue_size, bsp_schedule_delay, bsp_max_export_batch_size.")
    trace_file: str = option("", FILE, "Deprecated: --trace-config triton,file=FILE.")
    trace_level: tuple[str, ...] = repeated(TEXT, "Deprecated: --trace-config level=LEVEL.")
    trace_rate: int = option(1000, at_least(0), "Deprecated: --trace-config rate=N.")
    trace_count: int = option(-1, INTEGER, "Deprecated: --trace-config count=N.")
    trace_log_frequency: int = option(0, at_least(0), "Deprecated: --trace-config triton,log-frequency=N.")
    otel_queue_size: str = option("", TEXT,
        "Spans that may wait, unless --trace-config has bsp_max_queue_size.",
        variable="OTEL_BSP_MAX_QUEUE_SIZE", shown_default="2048")
    otel_schedule_delay: str = option("", TEXT,
        "Milliseconds until spans are sent, unless --trace-config has bsp_schedule_delay.",
        variable="OTEL_BSP_SCHEDULE_DELAY", shown_default="5000")
    otel_batch_size: str = option("", TEXT,
        "Spans sent together, unless --trace-config has bsp_max_export_batch_size.",
        variable="OTEL_BSP_MAX_EXPORT_BATCH_SIZE", shown_default="512")


@group("Payload log")
class PayloadLogSettings:
    payload_log: str = option("", Kind("<folder>|s3://...|gs://...|as://...|http(s)://...", _payload_target, (),
        FOLDER.paths),
        "Write requests and their responses: as JSON Lines to a folder or an object store, or as KServe's "
        "CloudEvents to an HTTP collector. What it does not take fast enough is dropped and counted.", own=True)
    payload_log_sample: float = option(1.0, number(0, 1),
        "Part of the requests that is recorded, from 0 to 1.", own=True)
    payload_log_max_bytes: int = option(1048576, integer(0, INT32_MAX),
        "Bytes of the tensors of a request that are recorded, and as many of its responses; larger ones are "
        "recorded without their elements.", own=True)
    payload_log_redact: tuple[str, ...] = repeated(TEXT,
        "Name of a tensor or a parameter whose content is not recorded.", own=True)


@group("Streams of responses")
class StreamSettings:
    response_window_count: int = option(DEFAULT_WINDOW.responses, integer(1, INT64_MAX),
        "Responses that a model may send before the client has taken them.", own=True)
    response_window_bytes: int = option(DEFAULT_WINDOW.nbytes, integer(1, INT64_MAX),
        "Bytes of responses after which a model waits for the client.", own=True)


@group("For test suites")
class SuiteSettings:
    delay_scheduler: int = option(0, integer(0, INT64_MAX),
        "Hold the first batch of each model with dynamic or sequence batching until so many requests "
        "wait.", variable="TRITONSERVER_DELAY_SCHEDULER")
    backlog_delay_scheduler: int = option(0, integer(0, INT64_MAX),
        "The same for direct sequence batching: so many must also wait in the backlog.",
        variable="TRITONSERVER_BACKLOG_DELAY_SCHEDULER")


def _unused(section: str, *rows: Option) -> tuple[Option, ...]:
    return tuple(row.placed(section, row.flag) for row in rows)


_BYTES = integer(0, INT64_MAX)

# tritonserver's options that are checked and change nothing here.
UNUSED_OPTIONS = (
    *_unused("Model repository",
        Option(flag="model-load-gpu-limit", kind=pair("model-load-gpu-limit", "device id", "fraction", number(0, 1)),
            repeatable=True),
        Option(flag="enable-peer-access", kind=BOOLEAN),
        Option(flag="repoagent-directory", kind=FOLDER)),
    *_unused("gRPC",
        Option(flag="grpc-infer-allocation-pool-size", kind=INTEGER),
        Option(flag="grpc-max-response-pool-size", kind=Kind("integer", _response_pool)),
        Option(flag="grpc-http2-max-pings-without-data", kind=INTEGER)),
    *_unused("Memory, devices",
        Option(flag="cache-directory", kind=FOLDER),
        Option(flag="pinned-memory-pool-byte-size", kind=INTEGER64),
        Option(flag="cuda-memory-pool-byte-size", kind=pair("cuda-memory-pool-byte-size", "device id", "bytes", _BYTES),
            repeatable=True),
        Option(flag="cuda-virtual-address-size", kind=pair("cuda-virtual-address-size", "device id", "bytes", _BYTES),
            repeatable=True),
        Option(flag="buffer-manager-thread-count", kind=INTEGER),
        Option(flag="host-policy", kind=setting("host-policy", "policy name", "numa-node", "cpu-cores"),
            repeatable=True)),
)
