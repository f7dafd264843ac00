from __future__ import annotations

import logging
import shlex
from typing import Any

import pytest

from trident.app.settings.reading import read_settings
from trident.app.terminal.report import log_first_request, log_services, log_settings
from trident.core.config.spec import InputSpec, ModelSpec
from trident.core.inference.tensors import BY_NAME

REPOSITORY = "--model-repository=/models"


def test_the_options_that_are_not_at_their_defaults_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_settings(read_settings([REPOSITORY, "--http-port=9"], {"AIP_MODE": "PREDICTION"}))
    tables = {record.message: record.__dict__["table"] for record in caplog.records}
    assert list(tables) == ["options that are not at their defaults", "Vertex AI's settings"]
    assert "http-port" in tables["options that are not at their defaults"]
    assert "metrics-port" not in tables["options that are not at their defaults"]


def test_the_addresses_are_logged_with_tritons_names(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_services(read_settings([REPOSITORY], {}))
    assert "Started HTTPService at 0.0.0.0:8000" in caplog.messages


def spec(name: str, *dims: int, datatype: str = "FP32", **more: Any) -> ModelSpec:
    given = InputSpec(name="IN", datatype=BY_NAME[datatype], dims=dims)
    return ModelSpec(
        name=name, version=1, platform="", backend="", max_batch_size=4, inputs={"IN": given}, outputs={}, **more
    )


@pytest.mark.parametrize(
    ("options", "specs", "words"),
    [
        (
            [],
            [spec("large", 3, 224, 224), spec("it's", -1, 2)],
            ["http://localhost:8000/v2/models/it%27s/infer", "-d", "{BODY}"],
        ),
        (["--http-address=::1", "--http-port=9"], [spec("m", 2, datatype="FP16")], ["http://[::1]:9/v2/models/m"]),
        ([], [spec("m", 2, decoupled=True)], ["http://localhost:8000/v2/models/m"]),
        ([], [], ["http://localhost:8000/v2"]),
        (["--http-address=10.0.0.1"], [], ["http://10.0.0.1:8000/v2"]),
    ],
)
def test_the_report_ends_with_a_request_to_copy(
    options: list[str], specs: list[ModelSpec], words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    log_first_request(read_settings([REPOSITORY, *options], {}), specs)
    body = '{"inputs":[{"name":"IN","datatype":"FP32","shape":[1,1,2],"data":[0,0]}]}'
    expected = [word.replace("{BODY}", body) for word in words]
    assert shlex.split(caplog.records[0].__dict__["command"]) == ["curl", "-s", *expected]


def test_a_server_without_an_http_port_has_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_first_request(read_settings([REPOSITORY, "--allow-http=false"], {}), [])
    assert not caplog.records
