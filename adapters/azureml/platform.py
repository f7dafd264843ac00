"""Azure ML as a platform of the registry: a custom container of an online endpoint.

The platform mounts the model at AZUREML_MODEL_DIR, and calls the routes that the deployment's `inference_config` names.
Those here are the ones of Azure's own inference server: port 5001, `/` for liveness, `/ready`, `/score`.
Source: docs/spec/azureml.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trident.adapters.common.options import BOOLEAN, PORT, TEXT, OptionText, OptionValues, group, option
from trident.adapters.common.platform import Evidence, Host, Platform, PlatformSettings, PlatformTexts

if TYPE_CHECKING:
    from trident.core.http.application import V2Application

MODEL_DIR = "AZUREML_MODEL_DIR"
LIVE_ROUTE, READY_ROUTE, SCORE_ROUTE = "/", "/ready", "/score"
_CONFIGURATION = "config.pbtxt"


# fmt: off
@group("Azure ML")
class AzureMLOptions:
    """The options of the server that only Azure ML has."""

    allow_azureml: bool = option(False, BOOLEAN, "Open Azure ML's port.", own=True)
    azureml_port: int = option(5001, PORT, "Azure ML's port, at the address of --http-address.", own=True)
    azureml_default_model: str = option("", TEXT,
        "The model of requests to Azure ML's scoring route.", shown_default="the only model", own=True)
# fmt: on


class AzureML(Platform):
    name = "azureml"
    title = "Azure ML"
    service = "Azure ML HTTPService"
    options = AzureMLOptions
    switch = "allow_azureml"
    port = "azureml_port"
    shown_by = f"{MODEL_DIR} is set"
    help = f"In a container of Azure ML the model is at {MODEL_DIR}."
    required_model = "azureml_default_model"
    infer_route = "/score"

    def evidence(self, environ: Mapping[str, str], given: OptionValues) -> Evidence | None:
        return Evidence(MODEL_DIR) if environ.get(MODEL_DIR) else None

    def texts(self, environ: Mapping[str, str], *, on_platform: bool) -> PlatformTexts:
        if not on_platform:
            return PlatformTexts()
        options = [OptionText("allow-azureml", "true", MODEL_DIR)]
        options += [OptionText(closed, "false", MODEL_DIR) for closed in ("allow-http", "allow-grpc")]
        if folder := environ.get(MODEL_DIR):
            options.append(OptionText("model-repository", repository(folder), MODEL_DIR))
        return PlatformTexts(options=options)

    def settings(self, given: OptionValues, environ: Mapping[str, str], *, on_platform: bool) -> PlatformSettings:
        options = given.of(AzureMLOptions)
        return PlatformSettings(
            port=options.azureml_port, default_model=options.azureml_default_model, health_route=READY_ROUTE
        )

    def application(self, settings: PlatformSettings, host: Host) -> V2Application:
        from trident.adapters.azureml.application import AzureMLApplication

        return AzureMLApplication(host, settings.default_model)


def repository(mounted: str) -> str:
    """The model repository below the mounted folder, in which a registered folder keeps its name.

    That folder is a repository itself if models are in it and not files of a model.
    """
    try:
        (only,) = Path(mounted).iterdir()
        inside = list(only.iterdir())
    except (OSError, ValueError):
        return mounted
    is_model = any(each.is_file() or each.name.isdecimal() for each in inside)
    return mounted if is_model or not inside else str(only)
