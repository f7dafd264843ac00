"""SageMaker as a platform of the registry: its environment variables, its options and settings, and its application.

Source: docs/spec/sagemaker.md sections A1, A2, A6, B1, B2 and C "Tunables".
"""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from trident.adapters.common.options import (
    BOOLEAN,
    FOLDER,
    PORT,
    BadValue,
    OptionText,
    OptionValues,
    SettingRow,
    checked,
    group,
    integer,
    option,
)
from trident.adapters.common.platform import (
    PLATFORM,
    CommandLineText,
    Evidence,
    Host,
    Platform,
    PlatformSettings,
    PlatformTexts,
)
from trident.core.errors import ConfigInvalid

if TYPE_CHECKING:
    from trident.core.http.application import V2Application


PREFIX = "SAGEMAKER_"
MULTI_MODEL = "SAGEMAKER_MULTI_MODEL"
BIND_TO_PORT = "SAGEMAKER_BIND_TO_PORT"
SAFE_PORT_RANGE = "SAGEMAKER_SAFE_PORT_RANGE"
DEFAULT_MODEL = "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
INFERENCE_TYPE = "SAGEMAKER_TRITON_INFERENCE_TYPE"
OVERRIDE_PING_MODE = "SAGEMAKER_TRITON_OVERRIDE_PING_MODE"
# Triton's server reads this name; its start script sets the other one.
PING_MODE = "SAGEMAKER_TRITON_PING_MODE"
BATCH = "SAGEMAKER_BATCH"
BATCH_STRATEGY = "SAGEMAKER_BATCH_STRATEGY"
MAX_PAYLOAD = "SAGEMAKER_MAX_PAYLOAD_IN_MB"
MAX_CONCURRENT_TRANSFORMS = "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS"
DEFAULT_ACCEPT = "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT"
STATEFUL_SESSIONS = "SAGEMAKER_ENABLE_STATEFUL_SESSIONS"
SESSIONS_EXPIRATION = "SAGEMAKER_SESSIONS_EXPIRATION"

Parse = Callable[[str, str], Any]
"""Reads the text of the variable of a name. Raises ConfigInvalid."""

_TRUE = frozenset({"true", "on", "1"})
_FALSE = frozenset({"false", "off", "0"})
_LAST_PORT = 65535
_PAYLOAD_MB = 6
# The platform's limit for the sum of all bodies in flight; more requests would only wait here.
IN_FLIGHT_MB = 100
_MOST_TRANSFORMS = 16
_LONGEST_NUMBER = 18
_SESSION_S = 1200
_LONGEST_SESSION_S = 365 * 86400


class InferenceType(StrEnum):
    """The kinds of /invocations."""

    INFER = "infer"
    GENERATE = "generate"
    """A flat JSON object in, one out."""
    GENERATE_STREAM = "generate_stream"
    """A flat JSON object in, an event for each response out."""


class PingMode(StrEnum):
    """The state of the server in which /ping answers 200."""

    READY = "ready"
    LIVE = "live"


class BatchStrategy(StrEnum):
    """How many records batch transform puts into one request."""

    MULTI_RECORD = "MULTI_RECORD"
    SINGLE_RECORD = "SINGLE_RECORD"


@dataclass(frozen=True, kw_only=True)
class SageMakerSettings(PlatformSettings):
    """`max_payload_mb` 0 means bodies of any size, in chunks.

    `sessions`: whether sessions are sequences; None for those of models with a sequence batcher.
    """

    health_route: str = "/ping"
    inference_type: InferenceType = InferenceType.INFER
    ping_mode: PingMode = PingMode.READY
    batch: bool = False
    batch_strategy: BatchStrategy = BatchStrategy.MULTI_RECORD
    max_payload_mb: int = _PAYLOAD_MB
    max_concurrent_transforms: int = _MOST_TRANSFORMS
    default_accept: str = "application/json"
    sessions: bool | None = None
    session_expiration_s: int = _SESSION_S
    model_root: str = "/opt/ml/model"
    models_root: str = "/opt/ml/models"

    def describe(self) -> list[SettingRow]:
        """The rows of the table at the start; ports and folders are in the table of the server's options."""
        return [
            SettingRow(name, _shown(getattr(self, at)), self.sources.get(at, "default"))
            for name, at, _ in _VARIABLES
            if name not in (BIND_TO_PORT, SAFE_PORT_RANGE, PING_MODE)
        ]


def read_sagemaker_settings(environ: Mapping[str, str], **given: Any) -> SageMakerSettings:
    """The settings from `environ` and, with precedence, `given`, which are fields that options of the command line set.

    An empty variable counts as not set. Raises ConfigInvalid that names the variable, its value and the accepted
    values.
    """
    values, sources = dict(given), {}
    for name, at, parse in _VARIABLES:
        text = environ.get(name, "").strip()
        if text and at not in values:
            values[at] = parse(name, text)
            sources[at] = "environment"
    values.setdefault("ping_mode", PingMode.LIVE if values.get("multi_model") else PingMode.READY)
    payload_mb = values.get("max_payload_mb", _PAYLOAD_MB)
    # As many transforms as the platform allows at once for bodies of this size, so that batches can form.
    most = max(1, min(_MOST_TRANSFORMS, IN_FLIGHT_MB // payload_mb)) if payload_mb else 1
    values.setdefault("max_concurrent_transforms", most)
    return SageMakerSettings(**values, sources=sources)


def parse_port_range(text: str) -> tuple[int, int]:
    """The two ports of `LOW-HIGH`, both inclusive. Raises ValueError."""
    low, _, high = text.partition("-")
    if not all(part.isascii() and part.isdigit() and len(part) <= len(str(_LAST_PORT)) for part in (low, high)):
        raise ValueError(f"a port range is LOW-HIGH, not '{text}'")
    first, last = int(low), int(high)
    if not first <= last <= _LAST_PORT:
        raise ValueError(f"the ports of a range go up, from 0 to {_LAST_PORT}, not '{text}'")
    return first, last


def bad_variable(name: str, value: str, expected: str) -> ConfigInvalid:
    return ConfigInvalid(f"the variable {name} is '{value}'; it takes {expected}")


def as_boolean(name: str, text: str) -> bool:
    """Raises ConfigInvalid."""
    folded = text.strip().lower()
    if folded not in _TRUE | _FALSE:
        raise bad_variable(name, text, "true or false")
    return folded in _TRUE


def as_integer(name: str, text: str, lowest: int, highest: int | None = None) -> int:
    """Raises ConfigInvalid."""
    bounds = f"a whole number from {lowest}{'' if highest is None else f' to {highest}'}"
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit() and len(stripped) <= _LONGEST_NUMBER):
        raise bad_variable(name, text, bounds)
    value = int(stripped)
    if value < lowest or (highest is not None and value > highest):
        raise bad_variable(name, text, bounds)
    return value


def _as_port_range(name: str, text: str) -> tuple[int, int]:
    try:
        return parse_port_range(text)
    except ValueError:
        raise bad_variable(name, text, f"LOW-HIGH, two ports from 0 to {_LAST_PORT}") from None


def _as_word_of(words: type[StrEnum]) -> Parse:
    """In any case, with or without underlines: the environment has MULTI_RECORD, the platform's API `MultiRecord`."""
    by_folded = {each.replace("_", "").lower(): each for each in words}

    def parse(name: str, text: str) -> StrEnum:
        found = by_folded.get(text.replace("_", "").lower())
        if found is None:
            raise bad_variable(name, text, " or ".join(words))
        return found

    return parse


# The variables, their fields and their parsers. The first of two variables of a field counts.
_VARIABLES: tuple[tuple[str, str, Parse], ...] = (
    (MULTI_MODEL, "multi_model", as_boolean),
    (BIND_TO_PORT, "port", partial(as_integer, lowest=0, highest=_LAST_PORT)),
    (SAFE_PORT_RANGE, "safe_port_range", _as_port_range),
    (DEFAULT_MODEL, "default_model", lambda name, text: text),
    (INFERENCE_TYPE, "inference_type", _as_word_of(InferenceType)),
    (OVERRIDE_PING_MODE, "ping_mode", _as_word_of(PingMode)),
    (PING_MODE, "ping_mode", _as_word_of(PingMode)),
    (BATCH, "batch", as_boolean),
    (BATCH_STRATEGY, "batch_strategy", _as_word_of(BatchStrategy)),
    (MAX_PAYLOAD, "max_payload_mb", partial(as_integer, lowest=0)),
    (MAX_CONCURRENT_TRANSFORMS, "max_concurrent_transforms", partial(as_integer, lowest=1)),
    (DEFAULT_ACCEPT, "default_accept", lambda name, text: text),
    (STATEFUL_SESSIONS, "sessions", as_boolean),
    (SESSIONS_EXPIRATION, "session_expiration_s", partial(as_integer, lowest=1, highest=_LONGEST_SESSION_S)),
)


def _shown(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


ADDITIONAL_ARGS = "SAGEMAKER_TRITON_ADDITIONAL_ARGS"
_DISABLE_NAMESPACING = "SAGEMAKER_TRITON_DISABLE_MODEL_NAMESPACING"
_MAX_REQUEST_SIZE = "SAGEMAKER_MAX_REQUEST_SIZE"
_LOG_LEVEL = "SAGEMAKER_CONTAINER_LOG_LEVEL"
_MB = 1 << 20
_LARGEST_BODY = 2**31 - 1
_REAL_TIME_BODY = 64 * _MB
_BATCH_BODY = 100 * _MB
# Bodies in chunks have no limit on the platform; this is the largest body of any of its calls.
_CHUNKED_BODY = 1024 * _MB
# Seconds. The server then ends at most 25 seconds after SIGTERM; the platform kills it after 30.
_EXIT_TIMEOUT = "23"

# The value of the variable is the value of the option.
_VERBATIM = {
    BIND_TO_PORT: "sagemaker-port",
    SAFE_PORT_RANGE: "sagemaker-safe-port-range",
    "SAGEMAKER_TRITON_THREAD_COUNT": "sagemaker-thread-count",
    "SAGEMAKER_TRITON_ALLOW_GRPC": "allow-grpc",
    "SAGEMAKER_TRITON_GRPC_PORT": "grpc-port",
    "SAGEMAKER_TRITON_ALLOW_METRICS": "allow-metrics",
    "SAGEMAKER_TRITON_METRICS_PORT": "metrics-port",
    "SAGEMAKER_TRITON_BUFFER_MANAGER_THREAD_COUNT": "buffer-manager-thread-count",
    "SAGEMAKER_TRITON_LOG_VERBOSE": "log-verbose",
    "SAGEMAKER_TRITON_LOG_INFO": "log-info",
    "SAGEMAKER_TRITON_LOG_WARNING": "log-warning",
    "SAGEMAKER_TRITON_LOG_ERROR": "log-error",
    "SAGEMAKER_MODEL_SERVER_TIMEOUT": "http-request-timeout-secs",
    "SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS": "http-request-timeout-secs",
}
_COMPUTED = (_DISABLE_NAMESPACING, _MAX_REQUEST_SIZE, _LOG_LEVEL, ADDITIONAL_ARGS)
EFFECTIVE_VARIABLES = (*(name for name, _, _ in _VARIABLES), *_VERBATIM, *_COMPUTED)
# Variables of Triton's start script and of AWS's libraries that change nothing here.
WITHOUT_EFFECT = (
    "SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE",
    "SAGEMAKER_TRITON_SHM_GROWTH_BYTE_SIZE",
    "SAGEMAKER_TRITON_TENSORFLOW_VERSION",
    "SAGEMAKER_TRITON_MODEL_LOAD_GPU_LIMIT",
    "SAGEMAKER_MODEL_SERVER_WORKERS",
    "SAGEMAKER_STARTUP_TIMEOUT",
    "SAGEMAKER_PROGRAM",
    "SAGEMAKER_SUBMIT_DIRECTORY",
    "SAGEMAKER_HEALTH_CHECK_OVERRIDE",
    "SAGEMAKER_SESSIONS_PATH",
)
# Only Triton's variables have this prefix, so an unknown one is misspelled.
_TRITON_PREFIX = "SAGEMAKER_TRITON_"
_LEVELS = {"notset": 0, "debug": 10, "info": 20, "warning": 30, "warn": 30, "error": 40, "critical": 50, "fatal": 50}


def server_options(environ: Mapping[str, str], settings: SageMakerSettings) -> list[OptionText]:
    """The options that the platform's defaults and variables set; later ones win. Raises ConfigInvalid."""
    set_here = {name: text.strip() for name, text in environ.items() if name.startswith(PREFIX) and text.strip()}
    given = {
        "allow-sagemaker": "true",
        "allow-http": "false",
        "allow-grpc": "false",
        "allow-metrics": "false",
        "model-control-mode": "demand" if settings.multi_model else "explicit",
        "exit-timeout-secs": _EXIT_TIMEOUT,
        "shutdown-grace-secs": "0",
        "http-max-input-size": str(_BATCH_BODY if settings.batch else _REAL_TIME_BODY),
    }
    found = [*[OptionText(flag, text, PLATFORM) for flag, text in given.items()], *_log_options(set_here)]
    found += [OptionText(flag, set_here[name].split()[0], name) for name, flag in _VERBATIM.items() if name in set_here]
    if _DISABLE_NAMESPACING in set_here:
        disabled = as_boolean(_DISABLE_NAMESPACING, set_here[_DISABLE_NAMESPACING].split()[0])
        found.append(OptionText("model-namespacing", "false" if disabled else "true", _DISABLE_NAMESPACING))
    return [*found, *_body_limit(set_here, settings)]


def arguments_behind(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """The arguments behind the values of variables, by variable.

    Triton's start script does not quote a value, so that SAGEMAKER_TRITON_LOG_INFO="false --load-model=enc" adds an
    option that has no variable of its own.
    """
    found = {name: environ.get(name, "").split()[1:] for name in (*_VERBATIM, _DISABLE_NAMESPACING)}
    return {name: arguments for name, arguments in found.items() if arguments}


def additional_arguments(environ: Mapping[str, str]) -> list[str]:
    """The arguments in SAGEMAKER_TRITON_ADDITIONAL_ARGS, split with a shell's quoting rules. Raises ConfigInvalid."""
    text = environ.get(ADDITIONAL_ARGS, "")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigInvalid(
            f"the variable {ADDITIONAL_ARGS} is not a list of arguments: {error}", hint="close the quotes"
        ) from None


def misspelled(environ: Mapping[str, str]) -> list[str]:
    known = [name for name in (*EFFECTIVE_VARIABLES, *WITHOUT_EFFECT) if name.startswith(_TRITON_PREFIX)]
    ends = [name.removeprefix(_TRITON_PREFIX) for name in known]  # with the prefix all of them are similar
    lines = []
    for name in sorted(environ):
        if name.startswith(_TRITON_PREFIX) and name not in known:
            nearest = difflib.get_close_matches(name.removeprefix(_TRITON_PREFIX), ends, n=1)
            lines.append(
                f"unknown variable {name}" + (f"; did you mean {_TRITON_PREFIX}{nearest[0]}?" if nearest else "")
            )
    return lines


def _body_limit(set_here: Mapping[str, str], settings: SageMakerSettings) -> list[OptionText]:
    found = []
    if MAX_PAYLOAD in set_here:
        payload = settings.max_payload_mb * _MB or _CHUNKED_BODY
        # The platform enforces its own limit; this one only has to be higher.
        least = _BATCH_BODY if settings.batch else 1
        found.append(OptionText("http-max-input-size", str(max(payload, least)), MAX_PAYLOAD))
    if _MAX_REQUEST_SIZE in set_here:
        size = as_integer(_MAX_REQUEST_SIZE, set_here[_MAX_REQUEST_SIZE], 1, _LARGEST_BODY)
        found.append(OptionText("http-max-input-size", str(size), _MAX_REQUEST_SIZE))
    return found


def _log_options(set_here: Mapping[str, str]) -> list[OptionText]:
    """The log switches for a level of Python's logging, given by number or name."""
    if _LOG_LEVEL not in set_here:
        return []
    text = set_here[_LOG_LEVEL]
    level = _LEVELS.get(text.lower())
    if level is None:
        if not (text.isascii() and text.isdigit()):
            raise bad_variable(_LOG_LEVEL, text, f"a number or {', '.join(_LEVELS)}")
        level = as_integer(_LOG_LEVEL, text, 0)
    switches = {
        "log-verbose": "1" if level <= _LEVELS["debug"] else "0",
        "log-info": "true" if level <= _LEVELS["info"] else "false",
        "log-warning": "true" if level <= _LEVELS["warning"] else "false",
        "log-error": "true" if level <= _LEVELS["error"] else "false",
    }
    return [OptionText(flag, each, _LOG_LEVEL) for flag, each in switches.items()]


_ALL_MODELS = ("*",)


def _check_port_range(text: str) -> None:
    try:
        parse_port_range(text)
    except ValueError as error:
        raise BadValue(f"--sagemaker-safe-port-range: {error}") from None


_PORT_RANGE = checked("<low>-<high>", _check_port_range)


# fmt: off
@group("SageMaker")
class SageMakerOptions:
    """The options of the server that only SageMaker has; its variables are in `SageMakerSettings`."""

    allow_sagemaker: bool = option(False, BOOLEAN, "Open SageMaker's port.")
    sagemaker_port: int = option(8080, PORT, "SageMaker's port, at the address of --http-address.")
    sagemaker_safe_port_range: str = option("", _PORT_RANGE, "Range in which all other ports must lie.")
    sagemaker_thread_count: int = option(8, integer(1), "As --http-thread-count, for SageMaker's port.")
    sagemaker_model_root: str = option("/opt/ml/model", FOLDER,
        "Directory into which SageMaker unpacks the model of an endpoint.", own=True)
    sagemaker_models_root: str = option("/opt/ml/models", FOLDER,
        "Directory into which SageMaker unpacks the models of a multi-model endpoint.", own=True)
# fmt: on


class SageMaker(Platform):
    name = "sagemaker"
    title = "SageMaker"
    service = "Sagemaker HTTPService"
    options = SageMakerOptions
    switch = "allow_sagemaker"
    port = "sagemaker_port"
    shown_by = (
        "a SAGEMAKER_* variable is set, or if no model repository is given and one of SageMaker's directories exists"
    )
    help = "In a SageMaker container no option is needed."
    infer_route = "/invocations"
    binary_type = "application/vnd.sagemaker-triton.binary+json"

    def evidence(self, environ: Mapping[str, str], given: OptionValues) -> Evidence | None:
        variables = sorted(name for name, text in environ.items() if name.startswith(PREFIX) and text)
        if variables:
            return Evidence(variables[0])
        if any(given.value("model_repository")):
            return None
        roots = [given.value(name) for name in ("sagemaker_model_root", "sagemaker_models_root")]
        return next((Evidence(root, may_be_chance=True) for root in roots if os.path.isdir(root)), None)

    def texts(self, environ: Mapping[str, str], *, on_platform: bool) -> PlatformTexts:
        if not on_platform:
            return PlatformTexts()
        behind = [CommandLineText(arguments, name) for name, arguments in arguments_behind(environ).items()]
        return PlatformTexts(
            options=server_options(environ, read_sagemaker_settings(environ)),
            arguments=(*behind, CommandLineText(additional_arguments(environ), ADDITIONAL_ARGS)),
            without_effect=[name for name in WITHOUT_EFFECT if environ.get(name)],
            warnings=misspelled(environ),
        )

    def settings(self, given: OptionValues, environ: Mapping[str, str], *, on_platform: bool) -> SageMakerSettings:
        options = given.of(SageMakerOptions)
        safe_range = options.sagemaker_safe_port_range
        settings = read_sagemaker_settings(
            environ,
            port=options.sagemaker_port,
            safe_port_range=parse_port_range(safe_range) if safe_range else None,
            model_root=options.sagemaker_model_root,
            models_root=options.sagemaker_models_root,
            thread_count=options.sagemaker_thread_count,
        )
        if not on_platform:
            return settings
        if not any(given.value("model_repository")) and not settings.multi_model:
            # The import is here because it loads numpy and protobuf, which the help text does not need.
            from trident.adapters.sagemaker.layout import find_default_model

            default_model = find_default_model(settings.model_root, settings.default_model)
            given.set("model_repository", (settings.model_root,), PLATFORM)
            sources = {"default_model": PLATFORM, **settings.sources}
            settings = replace(settings, default_model=default_model, sources=sources)
        named = given.value("load_model")
        if given.value("model_control_mode") == "explicit" and not settings.multi_model and named != _ALL_MODELS:
            startup = tuple(dict.fromkeys((settings.default_model, *named))) if settings.default_model else named
            given.set("load_model", startup or _ALL_MODELS, given.sources.get("load_model", PLATFORM))
        return settings

    def application(self, settings: SageMakerSettings, host: Host) -> V2Application:
        from trident.adapters.sagemaker.application import SageMakerApplication

        return SageMakerApplication(host, settings)
