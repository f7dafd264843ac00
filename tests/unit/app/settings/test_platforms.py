from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trident.adapters.common.options import BadOption, SettingRow
from trident.adapters.sagemaker.platform import SageMakerSettings
from trident.app.settings.reading import read_settings
from trident.app.settings.server import ServerSettings


def opened(found: ServerSettings, name: str) -> Any:
    """The settings of a platform whose port is open; None if it is closed."""
    return next((own for platform, own in found.open_platforms.items() if platform.name == name), None)


def sagemaker(found: ServerSettings) -> SageMakerSettings:
    own = opened(found, "sagemaker")
    assert isinstance(own, SageMakerSettings)
    return own


class Container:
    """A SageMaker container, with its model directories in a folder."""

    def __init__(self, tmp_path: Path) -> None:
        self.model_root, self.models_root = tmp_path / "model", tmp_path / "models"
        roots = {"MODEL_ROOT": self.model_root, "MODELS_ROOT": self.models_root}
        self.environ = {f"TRIDENT_SAGEMAKER_{name}": str(path) for name, path in roots.items()}

    def holds(self, *paths: str) -> None:
        for path in paths:
            (self.model_root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.model_root / path).touch()

    def settings(self, *arguments: str, **environ: str) -> ServerSettings:
        return read_settings(arguments, {**self.environ, **environ})

    def refusal(self, *arguments: str, **environ: str) -> str:
        with pytest.raises(BadOption) as refusal:
            self.settings(*arguments, **environ)
        return str(refusal.value)


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def test_sagemaker_is_detected_by_its_directory(container: Container) -> None:
    container.holds("cat/1/model.onnx", "code/inference.py")
    found = container.settings()
    assert found.platform == "sagemaker"
    assert found.sources["platform"] == str(container.model_root)
    assert found.model_repository == (str(container.model_root),)
    assert (found.any_layout, found.model_control_mode, found.load_model) == (True, "explicit", ("cat",))
    assert {name: each[:2] for name, each in found.services().items()} == {"SageMaker": ("0.0.0.0", 8080)}
    assert (found.exit_timeout_secs, found.shutdown_grace_secs) == (23, 0.0)
    assert (sagemaker(found).default_model, sagemaker(found).sources) == ("cat", {"default_model": "platform"})
    assert SettingRow("allow-http", "false", "platform") in found.describe()


def test_a_variable_counts_even_if_a_repository_is_given(container: Container) -> None:
    found = container.settings("--model-repository=/models", SAGEMAKER_REGION="eu-west-1")
    assert (found.platform, found.sources["platform"]) == ("sagemaker", "SAGEMAKER_REGION")
    assert (found.model_repository, found.any_layout, found.load_model) == (("/models",), False, ("*",))
    assert container.settings("--model-repository=/models", SAGEMAKER_BATCH="").platform == "auto"


def test_platform_plain_overrides_the_variables(container: Container) -> None:
    container.holds("cat/1/model.onnx")
    found = container.settings("--platform=plain", "--model-repository=/models", SAGEMAKER_BATCH="true")
    assert opened(found, "sagemaker") is None
    assert found.services().keys() == {"GRPC", "HTTP", "metrics"}
    assert container.refusal("--platform=plain") == "--model-repository must be specified"


def test_sagemakers_port_can_be_opened_besides_the_plain_one(container: Container) -> None:
    arguments = ["--model-repository=/models", "--allow-sagemaker=true", "--sagemaker-port=9", "--platform=plain"]
    found = container.settings(*arguments, SAGEMAKER_TRITON_PING_MODE="live", SAGEMAKER_BIND_TO_PORT="10")
    assert found.services().keys() == {"GRPC", "HTTP", "SageMaker", "metrics"}
    assert (found.model_control_mode, found.exit_timeout_secs) == ("none", 30)
    assert (sagemaker(found).port, sagemaker(found).ping_mode) == (9, "live")


def test_flags_override_variables_which_override_the_platform(container: Container) -> None:
    container.holds("model.onnx")
    environ = {"SAGEMAKER_BIND_TO_PORT": "1", "SAGEMAKER_TRITON_LOG_VERBOSE": "true"}
    found = container.settings(**environ)
    assert (sagemaker(found).port, found.sources["sagemaker_port"]) == (1, "SAGEMAKER_BIND_TO_PORT")
    assert (found.log_verbose, found.sources["log_verbose"]) == (1, "SAGEMAKER_TRITON_LOG_VERBOSE")
    additional = {**environ, "SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--log-verbose=2 --id='a b' --sagemaker-port=2"}
    found = container.settings(**additional)
    assert (found.log_verbose, found.server_id, sagemaker(found).port) == (2, "a b", 2)
    assert found.sources["server_id"] == "SAGEMAKER_TRITON_ADDITIONAL_ARGS"
    found = container.settings(**additional, TRIDENT_SAGEMAKER_PORT="3")
    assert (sagemaker(found).port, found.sources["sagemaker_port"]) == (3, "environment")
    found = container.settings("--sagemaker-port=4", "--allow-http", "true", **additional, TRIDENT_SAGEMAKER_PORT="3")
    assert (sagemaker(found).port, found.sources["sagemaker_port"]) == (4, "flag")
    assert sagemaker(found).port == 4
    assert found.services().keys() == {"HTTP", "SageMaker"}


def test_models_of_load_model_are_loaded_besides_the_default_model(container: Container) -> None:
    container.holds("cat/1/model.onnx", "dog/1/model.onnx", "cow/1/model.onnx")
    named = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "dog"}
    assert container.settings(**named).load_model == ("dog",)
    more = "--load-model=cat --load-model=dog"
    assert container.settings(**named, SAGEMAKER_TRITON_ADDITIONAL_ARGS=more).load_model == ("dog", "cat")
    assert container.settings("--load-model=*", **named).load_model == ("*",)
    found = container.settings("--model-control-mode=none", **named)
    assert found.load_model == ()
    assert sagemaker(found).default_model == "dog"


def test_multi_model_mode_has_no_repository_and_no_startup_model(container: Container) -> None:
    found = container.settings(SAGEMAKER_MULTI_MODEL="true")
    assert (found.model_repository, found.load_model, found.model_control_mode) == ((), (), "explicit")
    assert (sagemaker(found).models_root, sagemaker(found).ping_mode) == (str(container.models_root), "live")
    assert container.refusal("--model-control-mode=none", SAGEMAKER_MULTI_MODEL="true").startswith(
        'Bad option: "--model-control-mode".'
    )


def test_what_the_row_of_a_platform_says_of_its_variables_reaches_the_settings(container: Container) -> None:
    container.holds("model.onnx")
    names = ("SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE", "SAGEMAKER_TRITON_LOG_INF")
    found = container.settings(**dict.fromkeys(names, "1"))
    assert found.without_effect == ("SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE",)
    assert found.warnings == ("unknown variable SAGEMAKER_TRITON_LOG_INF; did you mean SAGEMAKER_TRITON_LOG_INFO?",)
    nonsense = container.refusal(SAGEMAKER_TRITON_ADDITIONAL_ARGS="--nonsense=1")
    assert nonsense.endswith('ADDITIONAL_ARGS".\nBad option: "--nonsense".\nunknown option')
    bad = container.refusal(SAGEMAKER_TRITON_LOG_INFO="x")
    assert bad.endswith("invalid value for bool option: x; --log-info takes true|false")
    closed = container.refusal(SAGEMAKER_SAFE_PORT_RANGE="1-2", SAGEMAKER_TRITON_ALLOW_METRICS="true")
    assert "metrics requests at port 8002, allowed port range is [1, 2]" in closed


CONTAINER = {
    "AIP_MODE": "PREDICTION",
    "AIP_HTTP_PORT": "8081",
    "AIP_PREDICT_ROUTE": "/v1/endpoints/12/deployedModels/34:predict",
    "AIP_HEALTH_ROUTE": "/v1/endpoints/12/deployedModels/34",
    "AIP_STORAGE_URI": "gs://bucket/artifacts",
}


def test_variables_of_two_platforms_are_refused_and_a_directory_does_not_count_beside_one(tmp_path: Path) -> None:
    both = {**CONTAINER, "SAGEMAKER_REGION": "eu-west-1"}
    with pytest.raises(BadOption) as refused:
        read_settings([], both)
    assert str(refused.value) == (
        "the environment has SAGEMAKER_REGION, which shows SageMaker, and AIP_MODE, which shows Vertex AI: choose one "
        "with --platform=sagemaker or --platform=vertex"
    )
    assert read_settings(["--platform=vertex"], both).services().keys() == {"Vertex AI", "metrics"}
    # A port that the platform closes may be named.
    found = read_settings(["--http-port=9000"], {**CONTAINER, "TRIDENT_SAGEMAKER_MODEL_ROOT": str(tmp_path)})
    assert found.platform == "vertex"
