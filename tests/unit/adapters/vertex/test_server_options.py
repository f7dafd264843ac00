"""The server options that the platform's variables set."""

from __future__ import annotations

import pytest

from trident.adapters.common.options import OptionText
from trident.adapters.vertex.settings import server_options
from trident.app.settings.server import SERVER_OPTIONS

VARIABLES = {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": " 8081 ", "AIP_STORAGE_URI": "gs://b/m"}


def test_the_platform_sets_its_options() -> None:
    assert server_options(VARIABLES, on_platform=True) == [
        OptionText("allow-vertex-ai", "true", "AIP_MODE"),
        OptionText("allow-http", "false", "AIP_MODE"),
        OptionText("allow-grpc", "false", "AIP_MODE"),
        OptionText("vertex-ai-port", "8081", "AIP_HTTP_PORT"),
        OptionText("model-repository", "gs://b/m", "AIP_STORAGE_URI"),
    ]


def test_the_port_and_the_repository_count_outside_of_the_platform() -> None:
    found = server_options(VARIABLES, on_platform=False)
    assert [each.flag for each in found] == ["vertex-ai-port", "model-repository"]


@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_variable_sets_nothing(text: str) -> None:
    assert server_options({"AIP_STORAGE_URI": text, "AIP_HTTP_PORT": text}, on_platform=False) == []


def test_every_option_exists_in_the_server() -> None:
    flags = {each.flag for each in SERVER_OPTIONS.values()}
    assert {each.flag for each in server_options(VARIABLES, on_platform=True)} <= flags
