from __future__ import annotations

from pathlib import Path

import pytest

from trident.adapters.common.options import BadOption, SettingRow
from trident.adapters.vertex.settings import VertexSettings
from trident.app.settings.reading import read_settings
from trident.app.settings.server import ServerSettings

CONTAINER = {
    "AIP_MODE": "PREDICTION",
    "AIP_HTTP_PORT": "8081",
    "AIP_PREDICT_ROUTE": "/v1/endpoints/12/deployedModels/34:predict",
    "AIP_HEALTH_ROUTE": "/v1/endpoints/12/deployedModels/34",
    "AIP_STORAGE_URI": "gs://bucket/artifacts",
}


def settings(*arguments: str, **environ: str) -> ServerSettings:
    return read_settings(arguments, environ)


def vertex(found: ServerSettings) -> VertexSettings:
    assert found.vertex is not None
    return found.vertex


def refusal(*arguments: str, **environ: str) -> str:
    with pytest.raises(BadOption) as refused:
        settings(*arguments, **environ)
    return str(refused.value)


def test_a_container_needs_no_option() -> None:
    found = settings(**CONTAINER)
    assert (found.platform, found.sources["platform"]) == ("vertex", "AIP_MODE")
    assert found.services() == {"Vertex AI": ("0.0.0.0", 8081), "metrics": ("0.0.0.0", 8002)}
    assert (found.model_repository, found.any_layout) == (("gs://bucket/artifacts",), True)
    assert found.warnings == ()
    assert vertex(found).mode == "PREDICTION"
    assert vertex(found).predict_route == CONTAINER["AIP_PREDICT_ROUTE"]
    assert vertex(found).health_route == CONTAINER["AIP_HEALTH_ROUTE"]
    assert vertex(found).public_groups == (
        "health",
        "metadata",
        "inference",
        "model-config",
        "statistics",
        "metrics",
    )
    assert SettingRow("vertex-ai-port", "8081", "AIP_HTTP_PORT") in found.describe()
    assert SettingRow("allow-http", "false", "AIP_MODE") in found.describe()


def test_the_options_set_the_settings_of_vertex_ai() -> None:
    arguments = [
        "--vertex-ai-default-model=cat",
        "--vertex-ai-payload=v2",
        "--vertex-ai-key-field=",
        "--vertex-ai-max-request-size=1500000",
        "--vertex-ai-max-response-size=2",
        "--vertex-ai-timeout-secs=2.5",
        "--public-routes=metrics,health,metrics",
    ]
    found = vertex(settings(*arguments, **CONTAINER))
    assert (found.default_model, found.payload, found.key_field) == ("cat", "v2", "")
    assert (found.max_request_size, found.max_response_size, found.timeout_s) == (1_500_000, 2, 2.5)
    assert found.public_groups == ("metrics", "health")
    assert vertex(settings("--public-routes=none", **CONTAINER)).public_groups == ()


@pytest.mark.parametrize("mode", ["True", "prediction", "LOCAL", "1"])
def test_another_mode_is_a_rehearsal_with_a_warning(mode: str) -> None:
    found = settings(**{**CONTAINER, "AIP_MODE": mode})
    assert (found.platform, vertex(found).mode) == ("vertex", mode)
    assert found.services().keys() == {"Vertex AI", "metrics"}
    (warning,) = found.warnings
    assert f"AIP_MODE is '{mode}' and not PREDICTION" in warning
    assert "rehearsal" in warning


@pytest.mark.parametrize("mode", ["", "  "])
def test_a_server_without_a_mode_is_plain_and_serves_the_artifacts(mode: str) -> None:
    found = settings(**{**CONTAINER, "AIP_MODE": mode})
    assert (found.platform, found.vertex) == ("auto", None)
    assert found.services().keys() == {"GRPC", "HTTP", "metrics"}
    assert (found.model_repository, found.any_layout) == (("gs://bucket/artifacts",), True)


def test_the_command_line_overrides_the_variables() -> None:
    found = settings(
        "--vertex-ai-port=9", "--model-repository=/models", "--allow-http=true", "--http-port=10", **CONTAINER
    )
    assert found.services().keys() == {"HTTP", "Vertex AI", "metrics"}
    assert (found.vertex_ai_port, found.model_repository, found.any_layout) == (9, ("/models",), False)
    found = settings(**CONTAINER, TRIDENT_VERTEX_AI_PORT="11", TRIDENT_ALLOW_METRICS="false")
    assert found.services() == {"Vertex AI": ("0.0.0.0", 11)}
    found = settings("--allow-vertex-ai=false", "--allow-http=true", **CONTAINER)
    assert (found.vertex, found.services().keys()) == (None, {"HTTP", "metrics"})


def test_the_option_platform_chooses_vertex_ai() -> None:
    found = settings("--platform=vertex", "--model-repository=/models")
    assert found.services().keys() == {"Vertex AI", "metrics"}
    assert vertex(found).predict_route == "/v1/endpoints/0/deployedModels/0:predict"
    assert "not PREDICTION" in found.warnings[0]


def test_the_option_platform_chooses_another_platform() -> None:
    found = settings("--platform=plain", "--model-repository=/models", **CONTAINER)
    assert (found.vertex, found.warnings) == (None, ())
    assert found.services().keys() == {"GRPC", "HTTP", "metrics"}


def test_vertex_ais_port_can_be_opened_besides_the_plain_one() -> None:
    found = settings("--allow-vertex-ai=true", "--model-repository=/models", "--vertex-ai-thread-count=3")
    assert found.services().keys() == {"GRPC", "HTTP", "Vertex AI", "metrics"}
    assert (found.vertex_ai_port, found.vertex_ai_thread_count, vertex(found).mode) == (8080, 3, "")
    assert (found.platform, found.any_layout, found.warnings) == ("auto", False, ())
    found = settings("--allow-vertex-ai=true", "--platform=plain", **{**CONTAINER, "AIP_MODE": ""})
    assert found.services().keys() == {"GRPC", "HTTP", "Vertex AI", "metrics"}
    assert vertex(found).predict_route == CONTAINER["AIP_PREDICT_ROUTE"]
    assert found.vertex_ai_port == 8081


def test_variables_of_two_platforms_are_refused() -> None:
    text = refusal(**CONTAINER, SAGEMAKER_REGION="eu-west-1")
    assert "--platform=vertex or --platform=sagemaker" in text
    assert settings("--platform=vertex", **CONTAINER, SAGEMAKER_REGION="x").services().keys() == {
        "Vertex AI",
        "metrics",
    }


def test_a_directory_of_sagemaker_does_not_count_on_vertex_ai(tmp_path: Path) -> None:
    found = settings(**CONTAINER, TRIDENT_SAGEMAKER_MODEL_ROOT=str(tmp_path))
    assert found.platform == "vertex"


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"AIP_PREDICT_ROUTE": "predict"}, "the variable AIP_PREDICT_ROUTE is 'predict'; it takes the path of a URL"),
        ({"AIP_HEALTH_ROUTE": "/a|b"}, "the variable AIP_HEALTH_ROUTE is '/a|b'; it takes the path of a URL"),
        ({"AIP_HTTP_PORT": "http"}, 'Bad variable: "AIP_HTTP_PORT"'),
        ({"AIP_PREDICT_ROUTE": "", "AIP_ENDPOINT_ID": "a/b"}, "the variable AIP_ENDPOINT_ID is 'a/b'"),
        ({"AIP_STORAGE_URI": ""}, "--model-repository must be specified"),
        (
            {"TRIDENT_PUBLIC_ROUTES": "health,all"},
            "--public-routes: 'all' is not a group of routes; the groups are health, ",
        ),
        ({"TRIDENT_VERTEX_AI_PAYLOAD": "raw"}, "raw"),
        ({"TRIDENT_VERTEX_AI_TIMEOUT_SECS": "-1"}, "out of bound. Got -1"),
    ],
)
def test_invalid_settings_of_the_platform_end_the_start(environ: dict[str, str], text: str) -> None:
    assert text in refusal(**{**CONTAINER, **environ})
