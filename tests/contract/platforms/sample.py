"""A platform of another package: it asks POST /predict on a port of its own.

It is registered with TRIDENT_PLATFORMS=tests.contract.platforms.sample:SAMPLE.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from trident.adapters.common.options import BOOLEAN, PORT, OptionText, OptionValues, group, option
from trident.adapters.common.platform import Evidence, Host, Platform, PlatformSettings, PlatformTexts
from trident.adapters.common.routes import BODY_STATUSES, absent_route, status_in
from trident.core.frontend.dataplane import one_response
from trident.core.frontend.default_model import DefaultModel
from trident.core.http.application import V2Application
from trident.core.http.dataplane import infer_body, read_body
from trident.core.http.reply import JSON, Environ, Reply
from trident.core.http.routes import POST, Route
from trident.core.inference.request import LATEST

VARIABLE = "SAMPLE_MODELS"


# fmt: off
@group("Sample cloud")
class SampleOptions:
    allow_sample: bool = option(False, BOOLEAN, "Whether the sample cloud's port is opened.", own=True)
    sample_port: int = option(5099, PORT, "Its port.", own=True)
# fmt: on


class Sample(Platform):
    name = "sample"
    title = "Sample cloud"
    service = "Sample HTTPService"
    options = SampleOptions
    switch = "allow_sample"
    port = "sample_port"
    shown_by = f"{VARIABLE} is set"

    def evidence(self, environ: Mapping[str, str], given: OptionValues) -> Evidence | None:
        return Evidence(VARIABLE) if environ.get(VARIABLE) else None

    def texts(self, environ: Mapping[str, str], *, on_platform: bool) -> PlatformTexts:
        options = {"allow-sample": "true", "allow-http": "false", "model-repository": environ.get(VARIABLE, "")}
        return PlatformTexts(options=[OptionText(*each, VARIABLE) for each in options.items()] if on_platform else [])

    def settings(self, given: OptionValues, environ: Mapping[str, str], *, on_platform: bool) -> PlatformSettings:
        return PlatformSettings(port=given.of(SampleOptions).sample_port)

    def application(self, settings: PlatformSettings, host: Host) -> V2Application:
        return SampleApplication(host)


class SampleApplication(V2Application):
    untyped_error_mime = JSON

    def __init__(self, host: Host) -> None:
        model = DefaultModel(host.engine, host.bridge, "", "put one model into the directory")
        route = Route("predict", ("/predict",), "inference", POST, partial(_predict, model))
        super().__init__(host.engine, host.options, host.bridge, (route, absent_route("POST /predict")))

    def status_of(self, error: Exception) -> int:
        return status_in(BODY_STATUSES, error) or super().status_of(error)


def _predict(model: DefaultModel, application: V2Application, environ: Environ) -> Reply:
    body = read_body(application, environ)
    return infer_body(application, environ, one_response(model.find()), body, LATEST, None)


SAMPLE = Sample()
