from __future__ import annotations

from werkzeug.test import Client

from tests.unit.fake_engine import FakeEngine
from trident.app.settings.reading import read_settings
from trident.app.sites.applications import http_options
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.application import V2Application


def test_the_http_options_follow_the_settings() -> None:
    arguments = ("--http-max-input-size=1000", "--http-restricted-api=inference:x-key=secret")
    options = http_options(read_settings(["--model-repository=/m", *arguments], {}))
    assert options.max_input_size == 1000
    client = Client(V2Application(FakeEngine(), options, ThreadBridge()))
    assert client.post("/v2/models/simple/infer").status_code == 403
