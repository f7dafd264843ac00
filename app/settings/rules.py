"""The rules between settings: invalid combinations and deprecations.

Source: docs/spec/server-options.md sections 2 to 4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trident.adapters.common.options import BadOption, is_unix, spell_endpoint
from trident.app.settings.groups import PLATFORMS
from trident.app.settings.server import SERVER_OPTIONS, ServerSettings
from trident.app.settings.sources import ENVIRONMENT, FLAG
from trident.core.errors import ConfigInvalid
from trident.core.observability.metrics_report import RESERVED_NAMES
from trident.core.repository.stores.object_store import name_problem

if TYPE_CHECKING:
    from trident.app.worker.tls import TlsFiles
    from trident.core.frontend.access import RestrictedKind


# The beginnings of the options of the ports that may have TLS.
PORTS = ("http", "grpc")
NAMES = ("server_cert", "server_key", "root_cert")


def tls_files(settings: ServerSettings, port: str) -> TlsFiles | None:
    """The files of one of the PORTS, None if its clients talk in plain text. Raises BadOption if one is not named."""
    is_mutual = getattr(settings, f"{port}_use_ssl_mutual")
    if not is_mutual and not getattr(settings, f"{port}_use_ssl"):
        return None
    from trident.app.worker.tls import TlsFiles

    names = NAMES if is_mutual else NAMES[:-1]
    for name in names:
        if not getattr(settings, f"{port}_{name}"):
            switch = f"--{port}-use-ssl-mutual" if is_mutual else f"--{port}-use-ssl"
            raise BadOption.of(f"--{SERVER_OPTIONS[f'{port}_{name}'].flag}", f"{switch} needs this file")
    return TlsFiles(*[getattr(settings, f"{port}_{name}") for name in names])


_LONGEST_NAME = 255
# CloudWatch takes 30, and the lines of models add two.
_MOST_DIMENSIONS = 28
_PRINTABLE = re.compile(rf"(?!:)(?=.*[!-~])[ -~]{{1,{_LONGEST_NAME}}}")
_DIMENSION = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")


def deprecations(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The warnings about deprecated options among these fields."""
    if "strict_model_config" not in given:
        return ()
    preferred = "'--disable-auto-complete-config'"
    texts = [f"Warning: '--strict-model-config' has been deprecated! Please use {preferred} instead."]
    if given.get("disable_auto_complete_config") and not given["strict_model_config"]:
        texts.append(f"Warning: '--strict-model-config=false' is overridden by {preferred}.")
    return tuple(texts)


def without_tls(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Warnings if these fields name the files of TLS and do not switch it on: clients would talk in plain text."""
    texts = []
    for port in PORTS:
        named = [f"{port}_{name}" for name in NAMES if given.get(f"{port}_{name}")]
        if named and not given.get(f"{port}_use_ssl") and not given.get(f"{port}_use_ssl_mutual"):
            flags = ", ".join(f"--{SERVER_OPTIONS[name].flag}" for name in named)
            word = "gRPC" if port == "grpc" else "HTTP"
            texts.append(f"without --{port}-use-ssl=true the {word} port has no TLS, and {flags} has no effect")
    return tuple(texts)


def without_tokens(settings: ServerSettings) -> tuple[str, ...]:
    """A warning if tokens are asked for and a port is open that does not ask for them."""
    if not settings.auth_token_file or not settings.open_platforms:
        return ()
    names = " and ".join(each.title for each in settings.open_platforms)
    return (f"--auth-token-file is for the HTTP and gRPC ports: on the port of {names} the platform says who may call",)


def overridden_trace_options(settings: ServerSettings) -> tuple[str, ...]:
    """Warnings about the older options of tracing that newer ones override."""
    if not settings.trace_config:
        return ()
    from trident.app.settings.trace_config import overridden

    return tuple(f"Warning: '{flag}' is overridden by '--trace-config'." for flag in overridden(settings))


def check(settings: ServerSettings, *, needs_repository: bool = True) -> None:
    """Raise BadOption for the first invalid combination."""
    _check_models(settings)
    if needs_repository and not any(settings.model_repository) and not settings.multi_model:
        raise BadOption("--model-repository must be specified")
    _check_http(settings)
    _check_grpc(settings)
    _check_tokens(settings)
    _check_ports(settings)
    _check_metrics_log(settings)
    _check_response_cache(settings)
    _check_tracing(settings)
    _check_engines(settings)


def _check_engines(settings: ServerSettings) -> None:
    if settings.engines in ("1", "auto"):
        return
    if settings.http_workers == "0":
        raise BadOption.of("--engines", "several engines need HTTP workers before them: --http-workers=0 leaves none")


def _check_models(settings: ServerSettings) -> None:
    if settings.load_model and settings.model_control_mode != "explicit":
        raise BadOption("Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
    if settings.reload and settings.model_control_mode == "explicit":
        raise BadOption.of("--reload", "with --model-control-mode=explicit a request loads a model again, not a change")
    if len(set(settings.load_model)) > 1 and "*" in settings.load_model:
        raise BadOption("Wildcard model name '*' must be the ONLY startup model if specified at all.")
    if "model_config_name" in settings.sources and not settings.model_config_name:
        raise BadOption("Error: empty argument for --model-config-name")
    _check_single_model(settings)
    if settings.multi_model and settings.model_control_mode != "explicit":
        raise BadOption.of("--model-control-mode", "a multi-model container loads models on request only: use explicit")


def _check_single_model(settings: ServerSettings) -> None:
    name = settings.single_model
    if not name and "single_model" in settings.sources:
        raise BadOption.of("--single-model", "the model's name is missing")
    if not name:
        return
    if problem := name_problem(name):
        raise BadOption.of("--single-model", f"{problem} cannot be the name of a model")
    if len(settings.model_repository) > 1:
        raise BadOption.of("--single-model", "it names the model of one repository, but several are given")


def _check_http(settings: ServerSettings) -> None:
    if settings.http_max_input_size <= 0:
        raise BadOption("Error: --http-max-input-size must be greater than 0.")
    if settings.allow_http:
        _check_tls(settings, "http")
    if not (settings.http_restricted_api or settings.http_header_forward_pattern):
        return
    from trident.core.frontend.access import HTTP
    from trident.core.http.front_end import HttpOptions

    _check_restricted(settings.http_restricted_api, HTTP)
    try:
        HttpOptions(header_forward_pattern=settings.http_header_forward_pattern)
    except ConfigInvalid as error:
        raise BadOption.of("--http-header-forward-pattern", _with_hint(error)) from None


def _check_grpc(settings: ServerSettings) -> None:
    if not settings.allow_grpc:
        return
    if settings.grpc_restricted_protocol or settings.grpc_header_forward_pattern:
        from trident.core.frontend.access import GRPC
        from trident.core.grpc.front_end import GrpcOptions

        _check_restricted(settings.grpc_restricted_protocol, GRPC)
        try:
            GrpcOptions(header_forward_pattern=settings.grpc_header_forward_pattern)
        except ConfigInvalid as error:
            raise BadOption.of("--grpc-header-forward-pattern", _with_hint(error)) from None
    _check_tls(settings, "grpc")


def _check_tls(settings: ServerSettings, port: str) -> None:
    """Read the files once at the start: otherwise clients would be the first to notice that one is wrong."""
    files = tls_files(settings, port)
    if files is None:
        return
    from trident.app.worker.tls import HTTP1, server_context

    try:
        server_context(files, HTTP1)
    except ConfigInvalid as error:
        raise BadOption.of(f"--{port}-use-ssl", _with_hint(error)) from None


def _check_tokens(settings: ServerSettings) -> None:
    if not settings.auth_token_file:
        if "auth_token_scope" in settings.sources:
            raise BadOption.of("--auth-token-scope", "without --auth-token-file no token is asked for")
        if "auth_token_file" in settings.sources:
            raise BadOption.of("--auth-token-file", "the file's path is missing")
        return
    if not settings.allow_http and not settings.allow_grpc:
        raise BadOption.of("--auth-token-file", "it is for the HTTP and gRPC ports, and both are closed")
    from trident.core.frontend.access import read_tokens

    try:
        read_tokens(settings.auth_token_file)
    except ConfigInvalid as error:
        raise BadOption.of("--auth-token-file", _with_hint(error)) from None


def _check_response_cache(settings: ServerSettings) -> None:
    if settings.cache_config and "response_cache_byte_size" in settings.sources:
        raise BadOption(
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. "
            "Please provide one or the other."
        )
    caches = settings.cache_settings()
    if len(caches) > 1:
        raise BadOption("found multiple cache configurations, but only a single cache is currently supported")
    redis = caches.get("redis")
    if redis is None:
        return
    flag = "--cache-config"
    if not {"host", "port"} <= redis.keys():
        raise BadOption.of(
            flag,
            "Failed to initialize RedisCache, didn't specify address. Must at a minimum specify 'host' and 'port' in "
            "the configuration - e.g. --cache-config redis,host=redis --cache-config redis,port=6379",
        )
    for name, exists in (
        ("cert", Path.is_file),
        ("key", Path.is_file),
        ("cacert", Path.is_file),
        ("cacert_dir", Path.is_dir),
    ):
        if name in redis and not exists(Path(redis[name])):
            raise BadOption.of(flag, f"the setting '{name}' of the response cache 'redis': there is no {redis[name]}")
    if find_spec("redis") is None:
        raise BadOption.of(
            flag,
            "the response cache 'redis' needs the package redis, which is not installed: "
            "pip install 'trident-inference[redis]'",
        )


def _check_restricted(values: Iterable[str], kind: RestrictedKind) -> None:
    from trident.core.frontend.access import parse_restricted

    for text in values:
        if "=" not in text.partition(":")[2]:  # the malformed text may contain the secret: do not quote it
            reason = "it takes <group>[,<group>...]:<header>=<value>"
            raise BadOption.of(kind.option, reason)
    try:
        parse_restricted(values, kind)
    except ConfigInvalid as error:
        raise BadOption.of(kind.option, _with_hint(error)) from None


def _with_hint(error: ConfigInvalid) -> str:
    return f"{error.message.rstrip()} ({error.hint})" if error.hint else error.message


def _check_metrics_log(settings: ServerSettings) -> None:
    """Raise BadOption for a name or value that CloudWatch would not take; it would drop the metrics silently."""
    if not _PRINTABLE.fullmatch(settings.metrics_log_namespace) or settings.metrics_log_namespace.startswith("AWS/"):
        reason = f"it takes 1 to {_LONGEST_NAME} printable ASCII characters that do not begin with a colon or AWS/"
        raise BadOption.of("--metrics-log-namespace", reason)
    dimensions = settings.metrics_log_dimensions
    if len(dimensions) > _MOST_DIMENSIONS:
        raise BadOption.of("--metrics-log-dimension", f"at most {_MOST_DIMENSIONS} dimensions are possible")
    for name, value in dimensions.items():
        if not _DIMENSION.fullmatch(name):
            reason = f"'{name}' cannot be a name: it takes letters, digits, '_', '-' and '.', and begins with a letter"
            raise BadOption.of("--metrics-log-dimension", reason)
        if name in RESERVED_NAMES:
            raise BadOption.of("--metrics-log-dimension", f"'{name}' is the name of a metric or of another dimension")
        if not _PRINTABLE.fullmatch(value):
            reason = f"the value of '{name}' takes 1 to {_LONGEST_NAME} printable ASCII characters, no colon in front"
            raise BadOption.of("--metrics-log-dimension", reason)


def _check_tracing(settings: ServerSettings) -> None:
    """Raise BadOption for invalid values, and for a missing package."""
    if not any(name in settings.sources for name in _TRACING):
        return
    from trident.core.observability.tracing.settings import TraceMode

    if settings.trace_options.mode is TraceMode.OPENTELEMETRY and not _has_otlp_exporter():
        raise BadOption.of(
            "--trace-config mode",
            "the mode opentelemetry needs packages that are not installed: pip install 'trident-inference[otel]'",
        )


def _has_otlp_exporter() -> bool:
    """Whether the packages of the extra `otel` are installed. Does not import them."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return all(version(name) for name in ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"))
    except PackageNotFoundError:
        return False


_TRACING = ("trace_config", "trace_file", "trace_level", "trace_rate", "trace_count", "trace_log_frequency")


def _check_ports(settings: ServerSettings) -> None:
    services = settings.services()
    if not services:
        raise BadOption(
            "Error: --allow-http=false, --allow-grpc=false and --allow-metrics=false leave nothing to serve."
        )
    _check_named_ports(settings)
    taken: dict[tuple[str, int], str] = {}
    for name, service in services.items():
        address, port = service.address, service.port
        other = taken.setdefault((address, port), name)
        if not port and not is_unix(address):
            raise BadOption(f"The server cannot listen to {name} requests at port 0: choose the port that clients use")
        if other != name:
            raise BadOption(
                f"The server cannot listen to {other} requests and {name} requests at the same address and port "
                f"{spell_endpoint(address, port)}"
            )
    for platform, own in settings.open_platforms.items():
        if own.safe_port_range is None:
            continue
        low, high = own.safe_port_range
        for name, service in services.items():
            if name != platform.title and not is_unix(service.address) and not low <= service.port <= high:
                raise BadOption(
                    f"The server cannot listen to {name} requests at port {service.port}, allowed port range is "
                    f"[{low}, {high}]"
                )


def _check_named_ports(settings: ServerSettings) -> None:
    """Raise BadOption for a port that a person named and that is closed only because nothing switches it on or off."""
    for platform in PLATFORMS:
        source = settings.sources.get(platform.port)
        if source in (FLAG, ENVIRONMENT) and platform.switch not in settings.sources:
            option, flag = SERVER_OPTIONS[platform.port], SERVER_OPTIONS[platform.switch].flag
            spelled = f"--{option.flag}" if source == FLAG else option.variable
            raise BadOption.of(spelled, f"this port is closed: add --{flag}=true to open it, or --{flag}=false")
