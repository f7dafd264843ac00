"""Azure ML's custom container, in one file: what it takes to add a platform to the server.

The platform mounts the model at AZUREML_MODEL_DIR, calls POST /score on port 5001, and probes two routes. It is
registered with TRIDENT_PLATFORMS=tests.contract.platforms.azureml:AZUREML.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from trident.adapters.common.options import BOOLEAN, PORT, OptionText, OptionValues, group, option
from trident.adapters.common.platform import Evidence, Host, Platform, PlatformSettings, PlatformTexts
from trident.adapters.common.routes import absent_route
from trident.core.frontend.default_model import DefaultModel
from trident.core.frontend.request import LATEST
from trident.core.http.admin import live, readiness, ready_reply
from trident.core.http.application import InferPath, V2Application
from trident.core.http.dataplane import infer_body, one_response, read_body
from trident.core.http.reply import Environ, Reply, json_reply
from trident.core.http.routes import GET, POST, Route

MODEL_DIR = "AZUREML_MODEL_DIR"


# fmt: off
@group("Azure ML")
class AzureMLOptions:
    allow_azureml: bool = option(False, BOOLEAN, "Whether Azure ML's port is opened.", own=True)
    azureml_port: int = option(5001, PORT, "Azure ML's port, at the address of --http-address.", own=True)
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

    def evidence(self, environ: Mapping[str, str], given: OptionValues) -> Evidence | None:
        return Evidence(MODEL_DIR) if environ.get(MODEL_DIR) else None

    def texts(self, environ: Mapping[str, str], *, on_platform: bool) -> PlatformTexts:
        if not on_platform:
            return PlatformTexts()
        closed = [OptionText(flag, "false", MODEL_DIR) for flag in ("allow-http", "allow-grpc")]
        opened = [OptionText("allow-azureml", "true", MODEL_DIR)]
        models = [OptionText("model-repository", environ[MODEL_DIR], MODEL_DIR)] if environ.get(MODEL_DIR) else []
        return PlatformTexts(options=[*opened, *closed, *models])

    def settings(self, given: OptionValues, environ: Mapping[str, str], *, on_platform: bool) -> PlatformSettings:
        return PlatformSettings(port=given.of(AzureMLOptions).azureml_port, health_route="/ready")

    def application(self, settings: PlatformSettings, host: Host) -> V2Application:
        return AzureMLApplication(host)


class AzureMLApplication(V2Application):
    """Scores with the only model."""

    def __init__(self, host: Host) -> None:
        model = DefaultModel(host.engine, host.bridge, "", "put one model into the directory")
        self._score = Route("score", ("/score",), "inference", POST, partial(_score, model))
        routes = (
            self._score,
            Route("live", ("/",), "health", GET, live),
            Route("ready", ("/ready",), "health", GET, _ready),
            absent_route("GET /, GET /ready, POST /score"),
        )
        super().__init__(host.engine, host.options, host.bridge, routes)

    def infer_path(self, path: str) -> InferPath | None:
        return (self._score, {}) if path == "/score" else None


def _score(model: DefaultModel, application: V2Application, environ: Environ) -> Reply:
    body = read_body(application, environ)
    return infer_body(
        application, environ, one_response(model.find()), body, LATEST, application.binary_header(environ)
    )


def _ready(application: V2Application, environ: Environ) -> Reply:
    engine = application.engine
    return ready_reply(application, environ) if engine.is_ready() else json_reply(readiness(engine.phase()), 503)


AZUREML = AzureML()
