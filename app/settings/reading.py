"""Reads the settings of a server from its command line, its environment and its platform.

The command line overrides the environment, which overrides the platform's variables and then its defaults. Everything
that is special about a platform comes from its row (adapters/common/platform.py).
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from getopt import GetoptError, gnu_getopt
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from trident.adapters.common.options import PREFIX, BadOption, BadValue, Option, OptionValues, is_unix, spell_endpoint
from trident.adapters.common.platform import PLATFORM, Platform, PlatformSettings
from trident.app.process.environment import process_environment
from trident.app.settings.groups import PLAIN, PLATFORMS, UNUSED_OPTIONS
from trident.app.settings.server import (
    PLATFORM_OPTIONS,
    SERVER_OPTIONS,
    ServerSettings,
    overridden_trace_options,
)
from trident.core.errors import ConfigInvalid, ServerError, installation
from trident.core.observability.tracing.trace import TraceMode
from trident.core.repository.stores.object_store import name_problem

if TYPE_CHECKING:
    from trident.app.worker.tls import TlsFiles
    from trident.core.frontend.access import RestrictedKind

# The name of the InferenceService, in all containers of its pods.
KSERVE_NAME = "INFERENCE_SERVICE_NAME"


def read_settings(
    arguments: Sequence[str], environ: Mapping[str, str] | None = None, *, needs_repository: bool = True
) -> ServerSettings:
    """Read the settings from the arguments after the command and from `environ`; None is the process environment.

    With `needs_repository` a missing model repository is an error. Raises BadOption with the text for the person who
    starts the server.
    """
    variables = process_environment() if environ is None else environ
    try:
        given, platforms, warnings, any_layout = _with_platforms(arguments, variables)
    except ServerError as error:
        raise BadOption(f"{error.message}\n{error.hint}" if error.hint else error.message) from None
    settings = ServerSettings(
        **{name: value for name, value in given.values.items() if name not in PLATFORM_OPTIONS},
        platform_values={name: given.value(name) for name in PLATFORM_OPTIONS},
        open_platforms=platforms,
        sources=given.sources,
        without_effect=given.without_effect,
        any_layout=any_layout or bool(given.values.get("single_model")),
    )
    if settings.multi_model and settings.model_control_mode == "explicit":
        # Triton's word for it: the platform loads and unloads the models.
        settings = replace(settings, model_control_mode="demand")
    check(settings, needs_repository=needs_repository)
    return replace(settings, warnings=(*warnings, *_warnings(settings)))


def _with_platforms(
    arguments: Sequence[str], environ: Mapping[str, str]
) -> tuple[OptionValues, dict[Platform, PlatformSettings], list[str], bool]:
    """The values of all sources, the settings of the platforms whose ports are open, the warnings of their rows, and
    whether the repository is a platform's. Raises BadOption, and ServerError for what a platform's row refuses.
    """
    given = collect(SERVER_OPTIONS, arguments, environ)
    chosen = given.value("platform")
    detected, evidence = next(((each, "") for each in PLATFORMS if each.name == chosen), (None, ""))
    if chosen == "auto":
        detected, evidence = _detected(given, environ)
    if detected is not None:
        readers = [detected]
    else:
        readers = [each for each in PLATFORMS if chosen != PLAIN or given.value(each.switch)]
    found = [each.texts(environ, on_platform=each is detected) for each in readers]
    by_flag = {each.flag: each for each in (*SERVER_OPTIONS.values(), *UNUSED_OPTIONS) if each.flag}
    texts = [(by_flag[flag], text, source) for each in found for flag, text, source in each.options]
    for line in (line for each in found for line in each.arguments):
        try:
            given_there = _only_options(by_flag.values(), line.arguments)
        except BadOption as error:
            raise BadOption.of(line.source, str(error)) from None
        texts += [(option, text, line.source) for option, text in given_there]
    service = environ.get(KSERVE_NAME, "")
    if service and len(given.value("model_repository")) == 1:
        texts.append((by_flag["single-model"], service, KSERVE_NAME))
    given = collect(SERVER_OPTIONS, arguments, environ, platform=texts)
    if detected is not None and evidence:
        given.set("platform", detected.name, evidence)
    given.without_effect = (*given.without_effect, *(name for each in found for name in each.without_effect))
    open_platforms = {}
    for each in PLATFORMS:
        if each is detected or given.value(each.switch):
            settings = each.settings(given, environ, on_platform=each is detected)
            if given.value(each.switch):
                open_platforms[each] = settings
    sources = {PLATFORM, *(text.source for each in found for text in each.options)}
    any_layout = given.sources.get("model_repository") in sources
    return given, open_platforms, [text for each in found for text in each.warnings], any_layout


def _detected(given: OptionValues, environ: Mapping[str, str]) -> tuple[Platform | None, str]:
    """The platform, and the variable or directory that shows it; (None, "") without one. Raises BadOption for two."""
    found = [(each, evidence) for each in PLATFORMS if (evidence := each.evidence(environ, given)) is not None]
    sure = [(each, evidence) for each, evidence in found if not evidence.may_be_chance]
    if len(sure) > 1:
        shown = ", and ".join(f"{evidence.source}, which shows {each.title}" for each, evidence in sure)
        choices = " or ".join(f"--platform={each.name}" for each, _ in sure)
        raise BadOption(f"the environment has {shown}: choose one with {choices}")
    for each, evidence in (*sure, *found):
        return each, evidence.source
    return None, ""


def with_repositories(arguments: Sequence[str], around: Callable[[str], str] = str) -> list[str]:
    """Return the arguments of `trident serve` in which each word that is not an option is a `--model-repository`.

    `around` gives the repository for a word; around a model it is another folder, and the console is on unless the
    arguments or the environment say otherwise. Raises BadOption as `read_settings` does.
    """
    given, words = split_arguments((*SERVER_OPTIONS.values(), *UNUSED_OPTIONS), arguments)
    options = [f"--{option.flag}={text}" if option.takes_value else f"--{option.flag}" for option, text in given]
    repositories = [around(word) for word in words]
    if repositories != words and SERVER_OPTIONS["console"].variables[0] not in process_environment():
        options.insert(0, "--console=true")
    return options + [f"--model-repository={each}" for each in repositories]


# --- the values that command line, environment and platform give, and the source of each.
# Source: docs/spec/server-options.md section 1
FLAG = "flag"
ENVIRONMENT = "environment"
FLAG_GIVEN = "true"
# Kubernetes sets these in every pod in the namespace of a service named `trident` or `trident-…`. They are not
# settings.
_SERVICE_LINK = re.compile(r"TRIDENT_(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT_\d+_(TCP|UDP|SCTP)\w*)", re.ASCII)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://", re.ASCII)
_SEPARATOR = re.compile(r"[;\r\n]+")


def given_variables(options: Iterable[Option], environ: Mapping[str, str]) -> list[tuple[Option, str, list[str]]]:
    """Return every option that `environ` sets, with the name of the variable and the texts of its values.

    Raises BadOption for a variable with our prefix that belongs to no option.
    """
    known = {variable: each for each in options for variable in each.variables}
    found: list[tuple[Option, str, list[str]]] = []
    for name, text in environ.items():
        if name.startswith(PREFIX) and (
            _SERVICE_LINK.fullmatch(name) or (name.endswith("_PORT") and _SERVICE_ADDRESS.match(text))
        ):
            continue
        option = known.get(name)
        if option is not None:
            texts = [each for each in _SEPARATOR.split(text) if each] if option.repeatable else [text]
            found += [(option, name, texts)] if text or option.empty_counts else []
        elif name.startswith(PREFIX):
            raise BadOption.of(name, f"unknown variable{nearest(name, known)}")
    return found


def split_arguments(options: Iterable[Option], arguments: Sequence[str]) -> tuple[list[tuple[Option, str]], list[str]]:
    """Return every option in `arguments` with the text of its value, in order, and the other arguments.

    Raises BadOption. As with tritonserver, an option is written `--name=value` or `--name value`, `--name` if it takes
    none, and a name may be shortened as long as it is unique. Among tritonserver's names first: our own make none of
    them ambiguous.
    """
    named = {name: each for each in options if each.flag for name in each.names}
    shorter: dict[str, dict[str, Option]] = {}
    for name, option in named.items():
        if not option.own:
            for length in range(1, len(name)):
                shorter.setdefault(name[:length], {})[option.flag] = option
    unique = {short: fitting.popitem()[1] for short, fitting in shorter.items() if len(fitting) == 1}
    by_name = {**unique, **named}
    try:
        given, others = gnu_getopt(
            list(arguments), "", [f"{name}=" if each.takes_value else name for name, each in by_name.items()]
        )
    except GetoptError as error:
        spelled = f"--{error.opt}" if f"--{error.opt}" in error.msg else f"-{error.opt}"
        if error.opt in by_name:
            raise BadOption.of(spelled, error.msg) from None
        fitting = ", ".join(f"--{name}" for name in sorted(named) if error.opt and name.startswith(error.opt))
        if fitting:
            raise BadOption.of(spelled, f"ambiguous: it may be {fitting}") from None
        meant = nearest(error.opt, named, "--") or "; --help lists the options"
        raise BadOption.of(spelled, f"unknown option{meant}") from None
    found = [(by_name[name.removeprefix("--")], text) for name, text in given]
    return [(option, text if option.takes_value else FLAG_GIVEN) for option, text in found], others


def _only_options(options: Iterable[Option], arguments: Sequence[str]) -> list[tuple[Option, str]]:
    found, others = split_arguments(options, arguments)
    if others:
        raise BadOption(f"Unexpected argument: {others[0]}")
    return found


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """`; did you mean X?` with the name in `known` that is closest to `name`; empty if none is close."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {prefix}{found[0]}?" if found else ""


def collect(
    options: Mapping[str, Option],
    arguments: Sequence[str],
    environ: Mapping[str, str],
    *,
    platform: Iterable[tuple[Option, str, str]] = (),
) -> OptionValues:
    """Return the values that `arguments`, `environ` and `platform` give to `options` (by field). Raises BadOption.

    `platform` has options with the texts of their values and the variables that contain them.

    `arguments` override `environ`, which overrides `platform`; within `platform` the last text counts. The values of a
    repeatable option accumulate within one source and replace those of another.
    """
    everything = (*options.values(), *UNUSED_OPTIONS)
    field_of = {id(each): name for name, each in options.items()}
    given = OptionValues(options)
    unused: list[str] = []

    def take(option: Option, spelled: str, source: str, text: str) -> None:
        try:
            value = option.kind.parse(text)
        except BadValue as error:
            # The variable of a platform is not named after the option.
            takes = "" if source in (ENVIRONMENT, FLAG) else f"; --{option.flag} takes {option.kind.name or 'no value'}"
            raise BadOption.of(spelled, f"{error}{takes}") from None
        name = field_of.get(id(option))
        if name is None:
            unused.append(spelled)
            return
        before = given.values[name] if option.repeatable and given.sources.get(name) == source else ()
        given.set(name, (*before, value) if option.repeatable else value, source)

    for option, text, source in platform:
        take(option, source, source, text)
    for option, variable, texts in given_variables(everything, environ):
        for text in texts:
            take(option, variable, ENVIRONMENT, text)
    for option, text in _only_options(everything, arguments):
        take(option, f"--{option.flag}", FLAG, text)
    given.without_effect = tuple(dict.fromkeys(unused))
    return given


# --- combinations that end the start. Source: docs/spec/server-options.md sections 2 to 4


def check(settings: ServerSettings, *, needs_repository: bool = True) -> None:
    """Raise BadOption for the first invalid combination."""
    _check_models(settings)
    if needs_repository and not any(settings.model_repository) and not settings.multi_model:
        raise BadOption("--model-repository must be specified\nname a model or a folder of them: trident serve models")
    _check_http(settings)
    _check_grpc(settings)
    _check_tokens(settings)
    _check_ports(settings)
    _check_metrics_log(settings)
    _check_response_cache(settings)
    _check_tracing(settings)
    _check_payload_log(settings)
    if settings.engines not in ("1", "auto") and settings.http_workers == "0":
        raise BadOption.of("--engines", "several engines need HTTP workers before them: --http-workers=0 leaves none")


def _check_models(settings: ServerSettings) -> None:
    if settings.load_model and settings.model_control_mode not in ("explicit", "demand"):
        raise BadOption("Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
    for name in ("model_memory", "model_idle_secs"):
        if name in settings.sources and settings.model_control_mode != "demand":
            raise BadOption.of(f"--{name.replace('_', '-')}", "it needs --model-control-mode=demand")
    if settings.model_control_mode == "demand" and settings.engines != "1" and not settings.multi_model:
        raise BadOption.of("--engines", "models that are loaded on demand are in one engine: several would hold copies")
    if settings.reload and settings.model_control_mode == "demand":
        raise BadOption.of("--reload", "with --model-control-mode=demand a changed model is read at its next load")
    if settings.reload and settings.model_control_mode == "explicit":
        raise BadOption.of("--reload", "with --model-control-mode=explicit a request loads a model again, not a change")
    if len(set(settings.load_model)) > 1 and "*" in settings.load_model:
        raise BadOption("Wildcard model name '*' must be the ONLY startup model if specified at all.")
    if "model_config_name" in settings.sources and not settings.model_config_name:
        raise BadOption("Error: empty argument for --model-config-name")
    if settings.model_signature:
        from trident.core.repository.signature import SigningKey

        try:
            SigningKey(Path(settings.model_signature))
        except ConfigInvalid as error:
            raise BadOption.of("--model-signature", f"{error.message}; {error.hint or 'name another file'}") from None
    name = settings.single_model
    if not name and "single_model" in settings.sources:
        raise BadOption.of("--single-model", "the model's name is missing")
    if name and (problem := name_problem(name)):
        raise BadOption.of("--single-model", f"{problem} cannot be the name of a model")
    if name and len(settings.model_repository) > 1:
        raise BadOption.of("--single-model", "it names the model of one repository, but several are given")
    if settings.multi_model and settings.model_control_mode != "demand":
        raise BadOption.of("--model-control-mode", "the models of a multi-model container are on demand: use demand")


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


NAMES = ("server_cert", "server_key", "root_cert")


def tls_files(settings: ServerSettings, port: str) -> TlsFiles | None:
    """The files of the port `http` or `grpc`, None if it has no TLS. Raises BadOption if one is not named."""
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


def _with_hint(error: ConfigInvalid) -> str:
    return f"{error.message.rstrip()} ({error.hint})" if error.hint else error.message


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


def _check_ports(settings: ServerSettings) -> None:
    services = settings.services()
    if not services:
        raise BadOption(
            "Error: --allow-http=false, --allow-grpc=false and --allow-metrics=false leave nothing to serve."
        )
    for flag, address in (("--http-address", settings.http_address), ("--metrics-address", settings.metrics_address)):
        if is_unix(address):
            raise BadOption.of(flag, "it is an address of the network: only --grpc-address may be a Unix socket")
    for platform in PLATFORMS:
        # A port that a person named is closed only because nothing switches it on or off.
        source = settings.sources.get(platform.port)
        if source in (FLAG, ENVIRONMENT) and platform.switch not in settings.sources:
            option, flag = SERVER_OPTIONS[platform.port], SERVER_OPTIONS[platform.switch].flag
            spelled = f"--{option.flag}" if source == FLAG else option.variable
            raise BadOption.of(spelled, f"this port is closed: add --{flag}=true to open it, or --{flag}=false")
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


_LONGEST_NAME = 255
# CloudWatch takes 30, and the lines of models add two.
_MOST_DIMENSIONS = 28
_PRINTABLE = re.compile(rf"(?!:)(?=.*[!-~])[ -~]{{1,{_LONGEST_NAME}}}")
_DIMENSION = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")


def _check_metrics_log(settings: ServerSettings) -> None:
    """Raise BadOption for a name or value that CloudWatch would not take; it would drop the metrics silently."""
    if not _PRINTABLE.fullmatch(settings.metrics_log_namespace) or settings.metrics_log_namespace.startswith("AWS/"):
        reason = f"it takes 1 to {_LONGEST_NAME} printable ASCII characters that do not begin with a colon or AWS/"
        raise BadOption.of("--metrics-log-namespace", reason)
    dimensions = settings.metrics_log_dimensions
    if not dimensions:
        return
    from trident.core.observability.metrics_log import RESERVED_NAMES  # imports numpy

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
            f"the response cache 'redis' needs the package redis, which is not installed: {installation('redis')}",
        )


_TRACING = ("trace_config", "trace_file", "trace_level", "trace_rate", "trace_count", "trace_log_frequency")


def _check_tracing(settings: ServerSettings) -> None:
    """Raise BadOption for invalid values, and for a missing package."""
    if not any(name in settings.sources for name in _TRACING):
        return
    options = settings.trace_options
    if options.mode is not TraceMode.OPENTELEMETRY:
        file = Path(options.file).absolute()
        place = file if file.exists() else file.parent
        if options.file and (file.is_dir() or not (file.parent.is_dir() and os.access(place, os.W_OK))):
            raise BadOption.of("--trace-config triton,file", f"{options.file} is not a file that this user can write")
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        for name in ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"):
            version(name)
    except PackageNotFoundError:
        raise BadOption.of(
            "--trace-config mode",
            f"the mode opentelemetry needs packages that are not installed: {installation('otel')}",
        ) from None


def _check_payload_log(settings: ServerSettings) -> None:
    target = settings.payload_log
    given = [f"--{name.replace('_', '-')}" for name in _OF_PAYLOAD_LOG if name in settings.sources]
    if given and not target:
        raise BadOption.of(given[0], "it needs --payload-log")
    if target and "://" not in target:
        place = Path(target).absolute()
        while not place.exists():  # it is made with its first file
            place = place.parent
        if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
            raise BadOption.of("--payload-log", f"{target} is not a folder to which this user can write")


_OF_PAYLOAD_LOG = ("payload_log_sample", "payload_log_max_bytes", "payload_log_redact")


# --- warnings


def _warnings(settings: ServerSettings) -> Iterator[str]:
    if "strict_model_config" in settings.sources:
        preferred = "'--disable-auto-complete-config'"
        yield f"Warning: '--strict-model-config' has been deprecated! Please use {preferred} instead."
        if settings.disable_auto_complete_config and not settings.strict_model_config:
            yield f"Warning: '--strict-model-config=false' is overridden by {preferred}."
    for port, word in (("http", "HTTP"), ("grpc", "gRPC")):
        named = [f"{port}_{name}" for name in NAMES if getattr(settings, f"{port}_{name}")]
        # Clients would talk in plain text.
        if named and not getattr(settings, f"{port}_use_ssl") and not getattr(settings, f"{port}_use_ssl_mutual"):
            flags = ", ".join(f"--{SERVER_OPTIONS[name].flag}" for name in named)
            yield f"without --{port}-use-ssl=true the {word} port has no TLS, and {flags} has no effect"
    if settings.auth_token_file and settings.open_platforms:
        names = " and ".join(each.title for each in settings.open_platforms)
        yield f"--auth-token-file is for the HTTP and gRPC ports: on the port of {names} the platform says who may call"
    if settings.rate_limit_resource and settings.rate_limit == "off":
        yield "without --rate-limit=execution_count, --rate-limit-resource has no effect"
    if settings.trace_config:
        given = overridden_trace_options(settings)
        yield from (f"Warning: '{flag}' is overridden by '--trace-config'." for flag in given)
