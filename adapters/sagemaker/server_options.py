"""The options of the server's command line that the platform's defaults and variables set.

Source: docs/spec/sagemaker.md sections A2 and A6, B1, C "Tunables".
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping

from adapters.common.option_text import OptionText
from adapters.sagemaker.settings import (
    ADAPTER_VARIABLES,
    BIND_TO_PORT,
    MAX_PAYLOAD,
    PREFIX,
    SAFE_PORT_RANGE,
    SageMakerSettings,
    as_boolean,
    as_integer,
    bad_variable,
)
from core.errors import ConfigInvalid

PLATFORM = "platform"
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
EFFECTIVE_VARIABLES = (*ADAPTER_VARIABLES, *_VERBATIM, *_COMPUTED)
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
    "SAGEMAKER_ENABLE_STATEFUL_SESSIONS",
    "SAGEMAKER_SESSIONS_EXPIRATION",
    "SAGEMAKER_SESSIONS_PATH",
)
# Only Triton's variables have this prefix, so an unknown one is misspelled.
_TRITON_PREFIX = "SAGEMAKER_TRITON_"
_LEVELS = {"notset": 0, "debug": 10, "info": 20, "warning": 30, "warn": 30, "error": 40, "critical": 50, "fatal": 50}


def server_options(environ: Mapping[str, str], settings: SageMakerSettings) -> list[OptionText]:
    """The options that the platform's defaults and variables set; later ones win. Raises ConfigInvalid."""
    set_here = {name: text.strip() for name, text in environ.items() if name.startswith(PREFIX) and text.strip()}
    found = [*_defaults(settings), *_log_options(set_here)]
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


def variables_without_effect(environ: Mapping[str, str]) -> list[str]:
    return [name for name in WITHOUT_EFFECT if environ.get(name)]


def misspelled(environ: Mapping[str, str]) -> list[str]:
    """A warning for each unknown variable with Triton's prefix."""
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


def _defaults(settings: SageMakerSettings) -> list[OptionText]:
    given = {
        "allow-sagemaker": "true",
        "allow-http": "false",
        "allow-grpc": "false",
        "allow-metrics": "false",
        "model-control-mode": "explicit",
        "exit-timeout-secs": _EXIT_TIMEOUT,
        "shutdown-grace-secs": "0",
        "http-max-input-size": str(_BATCH_BODY if settings.batch else _REAL_TIME_BODY),
    }
    return [OptionText(flag, text, PLATFORM) for flag, text in given.items()]


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
