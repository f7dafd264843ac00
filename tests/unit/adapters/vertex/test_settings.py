"""The settings of the adapter and of the server from the platform's variables."""

from __future__ import annotations

import pytest

from trident.adapters.common.options import OptionText
from trident.adapters.vertex.platform import read_routes, server_options
from trident.core.errors import ConfigInvalid

ROUTES = {"AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize(
    "route", ["predict", "/a?b", "/a#b", "/a b", "//a", "/<a>", "/{a}", "/a|b", "/é", "/a\\b", "http://h/a"]
)
def test_invalid_paths_are_refused(name: str, route: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        read_routes({name: route})
    assert refused.value.message == f"the variable {name} is '{route}'; it takes the path of a URL, such as /predict"
    assert refused.value.hint is not None


@pytest.mark.parametrize("name", ["AIP_ENDPOINT_ID", "AIP_DEPLOYED_MODEL_ID", "AIP_MODEL_NAME", "AIP_VERSION_NAME"])
@pytest.mark.parametrize("text", ["a/b", "1 2", "<x>", "¹", "-"])
def test_an_invalid_id_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigInvalid, match="the platform's ids are digits"):
        read_routes({name: text})


VARIABLES = {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": " 8081 ", "AIP_STORAGE_URI": "gs://b/m"}


def test_the_platform_sets_its_options_and_two_variables_apply_without_it() -> None:
    assert server_options(VARIABLES, on_platform=True) == [
        OptionText("allow-vertex-ai", "true", "AIP_MODE"),
        OptionText("allow-http", "false", "AIP_MODE"),
        OptionText("allow-grpc", "false", "AIP_MODE"),
        OptionText("vertex-ai-port", "8081", "AIP_HTTP_PORT"),
        OptionText("model-repository", "gs://b/m", "AIP_STORAGE_URI"),
    ]
    found = server_options(VARIABLES, on_platform=False)
    assert [each.flag for each in found] == ["vertex-ai-port", "model-repository"]
