"""The settings that a SageMaker container gives.

Source: docs/spec/sagemaker.md sections A1, B1 and B2.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trident.adapters.common.options import Option
from trident.adapters.sagemaker.settings import (
    ADDITIONAL_ARGS,
    PLATFORM,
    PREFIX,
    SageMakerSettings,
    additional_arguments,
    arguments_behind,
    misspelled,
    read_sagemaker_settings,
    server_options,
    variables_without_effect,
)
from trident.app.settings.groups import UNUSED_OPTIONS
from trident.app.settings.sources import Given, PlatformText, collect, parse_arguments

SAGEMAKER = "sagemaker"
_ALL_MODELS = ("*",)


@dataclass(frozen=True, slots=True)
class OnSageMaker:
    """With `any_layout` the repository is the directory into which the platform unpacked the model."""

    given: Given
    settings: SageMakerSettings
    any_layout: bool
    warnings: tuple[str, ...]


def sagemaker_evidence(options: Mapping[str, Option], given: Given, environ: Mapping[str, str]) -> str:
    """The variable or the directory that shows that this is a SageMaker container; "" without one."""
    variables = sorted(name for name, text in environ.items() if name.startswith(PREFIX) and text)
    if variables:
        return variables[0]
    if any(given.values.get("model_repository", ())):
        return ""
    roots = [_value(options, given, name) for name in ("sagemaker_model_root", "sagemaker_models_root")]
    return next((root for root in roots if os.path.isdir(root)), "")


def on_sagemaker(
    options: Mapping[str, Option], arguments: Sequence[str], environ: Mapping[str, str], evidence: str
) -> OnSageMaker:
    by_flag = {each.flag: each for each in (*options.values(), *UNUSED_OPTIONS) if each.flag}
    texts = [
        PlatformText(by_flag[flag], text, source)
        for flag, text, source in server_options(environ, read_sagemaker_settings(environ))
    ]
    for name, behind in arguments_behind(environ).items():
        texts += parse_arguments(by_flag.values(), behind, name)
    additional = parse_arguments(by_flag.values(), additional_arguments(environ), ADDITIONAL_ARGS)
    given = collect(options, arguments, environ, platform=[*texts, *additional])
    if evidence:
        given.set("platform", SAGEMAKER, evidence)
    given.without_effect = (*given.without_effect, *variables_without_effect(environ))
    settings = sagemaker_settings(options, given, environ)
    from_platform = not any(given.values.get("model_repository", ())) and not settings.multi_model
    if from_platform:
        # The import is here because it loads numpy and protobuf, which the help text and a plain server do not need.
        from trident.adapters.sagemaker.layout import read_layout

        layout = read_layout(settings.model_root, settings.default_model)
        given.set("model_repository", (settings.model_root,), PLATFORM)
        sources = {"default_model": PLATFORM, **settings.sources}
        settings = replace(settings, default_model=layout.default_model, sources=sources)
    _set_startup_models(given, settings)
    return OnSageMaker(given, settings, from_platform, tuple(misspelled(environ)))


def _set_startup_models(given: Given, settings: SageMakerSettings) -> None:
    """Load the default model and the models of --load-model at startup; all models if neither is given."""
    named = given.values.get("load_model", ())
    if given.values.get("model_control_mode") != "explicit" or settings.multi_model or named == _ALL_MODELS:
        return
    startup = tuple(dict.fromkeys((settings.default_model, *named))) if settings.default_model else named
    given.set("load_model", startup or _ALL_MODELS, given.sources.get("load_model", PLATFORM))


def sagemaker_settings(options: Mapping[str, Option], given: Given, environ: Mapping[str, str]) -> SageMakerSettings:
    return read_sagemaker_settings(
        environ,
        port=_value(options, given, "sagemaker_port"),
        safe_port_range=_value(options, given, "sagemaker_safe_port_range"),
        model_root=_value(options, given, "sagemaker_model_root"),
        models_root=_value(options, given, "sagemaker_models_root"),
    )


def _value(options: Mapping[str, Option], given: Given, name: str) -> Any:
    return given.values.get(name, options[name].default)
