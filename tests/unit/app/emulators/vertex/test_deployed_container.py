"""What Vertex AI gives a container: artifacts, arguments and variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from trident.app.emulators.vertex.container import (
    expanded,
    platform_variables,
    provided,
)
from trident.app.emulators.vertex.limits import Deployment
from trident.core.errors import ConfigInvalid


def test_a_folder_is_copied_read_only(tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.onnx").write_bytes(b"x")
    (model / "link.onnx").symlink_to(model / "1" / "model.onnx")
    copy = Path(provided(str(model), tmp_path / "copy"))
    assert copy == tmp_path / "copy"
    (model / "1" / "model.onnx").write_bytes(b"changed")
    assert (copy / "1" / "model.onnx").read_bytes() == b"x"
    assert not (copy / "link.onnx").is_symlink()
    assert not (copy / "1").stat().st_mode & 0o222


@pytest.mark.parametrize(
    ("model", "text"), [("nothing", "is not there"), ("file", "is a file"), ("gs://", "no bucket")]
)
def test_invalid_artifacts_are_refused(model: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigInvalid, match=text):
        provided(model if model.startswith("gs:") else str(tmp_path / model), tmp_path / "copy")


def test_a_failed_copy_gives_the_reason(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "dangling").symlink_to(tmp_path / "nothing")
    with pytest.raises(ConfigInvalid, match="No such file"):
        provided(str(model), tmp_path / "copy")


DEPLOYMENT = Deployment(endpoint_id="12", deployed_model_id="34", project_number="56")


def test_all_platform_variables_are_set() -> None:
    assert platform_variables(DEPLOYMENT, 8080, "gs://b/m") == {
        "AIP_HTTP_PORT": "8080",
        "AIP_PREDICT_ROUTE": "/v1/endpoints/12/deployedModels/34:predict",
        "AIP_HEALTH_ROUTE": "/v1/endpoints/12/deployedModels/34",
        "AIP_STORAGE_URI": "gs://b/m",
        "AIP_MODE": "PREDICTION",
        "AIP_MODE_VERSION": "1.0.0",
        "AIP_FRAMEWORK": "CUSTOM_CONTAINER",
        "AIP_ENDPOINT_ID": "12",
        "AIP_DEPLOYED_MODEL_ID": "34",
        "AIP_MODEL_NAME": "12",
        "AIP_VERSION_NAME": "34",
        "AIP_MACHINE_TYPE": "n1-standard-4",
        "AIP_PROJECT_NUMBER": "56",
    }


def test_routes_of_the_model_replace_the_platforms() -> None:
    own = Deployment(predict_route="/predict", health_route="/health")
    found = platform_variables(own, 1, "")
    assert (found["AIP_PREDICT_ROUTE"], found["AIP_HEALTH_ROUTE"]) == ("/predict", "/health")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("$(A)-$(A)", "1-1"),
        ("$(B)", "$(B)"),
        ("$$(A)", "$(A)"),
        ("$$", "$"),
        ("$A ${A} $(A", "$A ${A} $(A"),
    ],
)
def test_references_to_variables_are_replaced(text: str, value: str) -> None:
    assert expanded(text, {"A": "1"}) == value
