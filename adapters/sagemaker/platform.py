"""SageMaker as a platform of the registry: what shows it, its options and settings, and its application.

Source: docs/spec/sagemaker.md sections A1, B1 and B2.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from trident.adapters.common.options import (
    BOOLEAN,
    FOLDER,
    PORT,
    BadValue,
    OptionValues,
    checked,
    group,
    integer,
    option,
)
from trident.adapters.common.platform import PLATFORM, CommandLineText, Evidence, Host, Platform, PlatformTexts
from trident.adapters.sagemaker.settings import (
    ADDITIONAL_ARGS,
    PREFIX,
    SageMakerSettings,
    additional_arguments,
    arguments_behind,
    misspelled,
    parse_port_range,
    read_sagemaker_settings,
    server_options,
    variables_without_effect,
)

if TYPE_CHECKING:
    from trident.core.http.application import V2Application

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
    sagemaker_memory_limit_mb: int = option(0, integer(0),
        "Memory limit in megabytes of a multi-model endpoint's server, if lower than the "
        "container's; 0: the container's.", own=True)
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
            without_effect=variables_without_effect(environ),
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
            memory_limit_mb=options.sagemaker_memory_limit_mb,
        )
        if not on_platform:
            return settings
        if not any(given.value("model_repository")) and not settings.multi_model:
            # The import is here because it loads numpy and protobuf, which the help text does not need.
            from trident.adapters.sagemaker.layout import read_layout

            layout = read_layout(settings.model_root, settings.default_model)
            given.set("model_repository", (settings.model_root,), PLATFORM)
            sources = {"default_model": PLATFORM, **settings.sources}
            settings = replace(settings, default_model=layout.default_model, sources=sources)
        _set_startup_models(given, settings)
        return settings

    def application(self, settings: SageMakerSettings, host: Host) -> V2Application:
        from trident.adapters.sagemaker.application import SageMakerApplication
        from trident.adapters.sagemaker.memory import MemoryBudget, SharedReservations
        from trident.adapters.sagemaker.model_states import ModelStates
        from trident.core.observability.hardware import resident_bytes

        memory: MemoryBudget | None = None
        states: ModelStates | None = None
        limit = settings.memory_limit_mb * 1_000_000 or None
        if settings.multi_model and host.folder is not None and (process_ids := host.process_ids) is not None:
            reservations = SharedReservations(host.folder / "loads")
            memory = MemoryBudget.of_engines(lambda: sum(map(resident_bytes, process_ids())), reservations, limit=limit)
            states = ModelStates(host.engine, host.folder / "models")
        elif settings.multi_model:
            memory = MemoryBudget.of_machine(limit=limit)
        return SageMakerApplication(
            host.engine, host.options, host.bridge, settings, host.metrics_page, memory=memory, states=states
        )


def _set_startup_models(given: OptionValues, settings: SageMakerSettings) -> None:
    """Load the default model and the models of --load-model at startup; all models if neither is given."""
    named = given.value("load_model")
    if given.value("model_control_mode") != "explicit" or settings.multi_model or named == _ALL_MODELS:
        return
    startup = tuple(dict.fromkeys((settings.default_model, *named))) if settings.default_model else named
    given.set("load_model", startup or _ALL_MODELS, given.sources.get("load_model", PLATFORM))
