"""The rules between settings: invalid combinations and deprecations.

Source: docs/spec/server-options.md sections 2 to 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from app.settings.option import BadOption
from app.settings.precedence import ENVIRONMENT, FLAG, UnusedValue
from app.settings.server import SERVER_OPTIONS, ServerSettings
from app.settings.services import Service
from core.errors import ConfigInvalid
from core.repository.stores.object_names import name_problem


def deprecations(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The warnings about deprecated options among these fields."""
    if "strict_model_config" not in given:
        return ()
    preferred = "'--disable-auto-complete-config'"
    texts = [f"Warning: '--strict-model-config' has been deprecated! Please use {preferred} instead."]
    if given.get("disable_auto_complete_config") and not given["strict_model_config"]:
        texts.append(f"Warning: '--strict-model-config=false' is overridden by {preferred}.")
    return tuple(texts)


def check_grpc(unused: Iterable[UnusedValue]) -> None:
    """Raise BadOption if the person who starts the server asks for gRPC or names its port.

    Its clients would find a closed port. `--allow-grpc=false` allows a command line that names the port; options that
    only tune gRPC, and the variables of a platform, whose clients cannot reach the port, are without effect.
    """
    asked = {each.option.flag: each for each in unused if each.source in (FLAG, ENVIRONMENT)}
    switch = asked.pop("allow-grpc", None)
    if switch is not None and not switch.value:
        return
    found = switch or asked.get("grpc-port")
    if found is not None:
        reason = "this server does not have gRPC: use its HTTP port, and --allow-grpc=false to start without gRPC"
        raise BadOption.of(found.spelled, reason)


def check(settings: ServerSettings, *, needs_repository: bool = True) -> None:
    """Raise BadOption for the first invalid combination."""
    _check_models(settings)
    if needs_repository and not any(settings.model_repository) and not settings.multi_model:
        raise BadOption("--model-repository must be specified")
    _check_http(settings)
    _check_ports(settings)
    if settings.multi_model and settings.http_workers not in ("auto", "0"):
        reason = "a multi-model container measures the memory of the process that has the models: use 0 or auto"
        raise BadOption.of("--http-workers", reason)


def _check_models(settings: ServerSettings) -> None:
    if settings.load_model and settings.model_control_mode != "explicit":
        raise BadOption("Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
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
    if not (settings.http_restricted_api or settings.http_header_forward_pattern):
        return
    from core.frontend.restricted_apis import parse_restricted
    from core.http.options import HttpOptions

    for text in settings.http_restricted_api:
        if "=" not in text.partition(":")[2]:  # the malformed text may contain the secret: do not quote it
            reason = "it takes <group>[,<group>...]:<header>=<value>"
            raise BadOption.of("--http-restricted-api", reason)
    try:
        parse_restricted(settings.http_restricted_api)
    except ConfigInvalid as error:
        raise BadOption.of("--http-restricted-api", _with_hint(error)) from None
    try:
        HttpOptions(header_forward_pattern=settings.http_header_forward_pattern)
    except ConfigInvalid as error:
        raise BadOption.of("--http-header-forward-pattern", _with_hint(error)) from None


def _with_hint(error: ConfigInvalid) -> str:
    return f"{error.message.rstrip()} ({error.hint})" if error.hint else error.message


def _check_ports(settings: ServerSettings) -> None:
    services = settings.services()
    if not services:
        raise BadOption("Error: --allow-http=false and --allow-metrics=false leave nothing to serve.")
    _check_named_ports(settings)
    taken: dict[tuple[str, int], Service] = {}
    for service, (address, port) in services.items():
        other = taken.setdefault((address, port), service)
        if not port:
            raise BadOption(
                f"The server cannot listen to {service} requests at port 0: choose the port that clients use"
            )
        if other != service:
            raise BadOption(
                f"The server cannot listen to {other} requests and {service} requests at the same address and port "
                f"{address}:{port}"
            )
    _check_safe_ports(settings, services)


# The ports that are closed by default, and the options that open them.
_CLOSED_PORTS = {"sagemaker_port": "allow_sagemaker", "vertex_ai_port": "allow_vertex_ai"}


def _check_named_ports(settings: ServerSettings) -> None:
    """Raise BadOption for a port that a person named and that is closed only because nothing switches it on or off."""
    for port, switch in _CLOSED_PORTS.items():
        source = settings.sources.get(port)
        if source in (FLAG, ENVIRONMENT) and switch not in settings.sources:
            option, flag = SERVER_OPTIONS[port], SERVER_OPTIONS[switch].flag
            spelled = f"--{option.flag}" if source == FLAG else option.variable
            raise BadOption.of(spelled, f"this port is closed: add --{flag}=true to open it, or --{flag}=false")


def _check_safe_ports(settings: ServerSettings, services: Mapping[Service, tuple[str, int]]) -> None:
    """Outside the range other containers of the platform listen."""
    safe = settings.sagemaker.safe_port_range if settings.sagemaker and settings.allow_sagemaker else None
    for service, (_, port) in services.items():
        if safe and service != Service.SAGEMAKER and not safe[0] <= port <= safe[1]:
            raise BadOption(
                f"The server cannot listen to {service} requests at port {port}, allowed port range is "
                f"[{safe[0]}, {safe[1]}]"
            )
