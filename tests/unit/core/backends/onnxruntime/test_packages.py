"""Model packages of ONNX Runtime, written as its specification has them and opened by it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.project import ROOT
from trident.core.backends.onnxruntime.backend import OnnxRuntimeBackend
from trident.core.backends.onnxruntime.packages import Variant, variant_of
from trident.core.backends.onnxruntime.providers import CPU, CUDA, ProviderRequest
from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid, ModelLoadFailed

MODEL = ROOT / "deploy" / "models" / "digits" / "1" / "model.onnx"
SPINNING = "session.intra_op.allow_spinning"
ON_CPU = [ProviderRequest(CPU, {})]


def variant(folder: str = "plain", file: Any = "model.onnx", ep: str = CPU, **more: Any) -> dict[str, Any]:
    return {"variant_directory": folder, "ep": ep, "executor_info": {"ort": {"model_file": file, **more}}}


def package(folder: Path, components: Any, **more: Any) -> Path:
    """A package whose folders `plain` and `fast` have the model."""
    for name in ("plain", "fast"):
        (folder / name).mkdir(parents=True)
        shutil.copyfile(MODEL, folder / name / "model.onnx")
    (folder / "manifest.json").write_text(json.dumps({"schema_version": "1.0", "components": components, **more}))
    return folder


def of(variants: Mapping[str, Any]) -> dict[str, Any]:
    return {"digits": {"variants": variants}}


def chosen(folder: Path) -> Variant:
    return variant_of(folder, ON_CPU, (SPINNING,), "m")


def test_the_variant_for_the_provider_is_chosen_with_its_settings(tmp_path: Path) -> None:
    variants = {"nvidia": variant("fast", ep=CUDA), "any": variant(session_options={SPINNING: "0"})}
    found = chosen(package(tmp_path, of(variants)))
    assert found == Variant("any", CPU, tmp_path / "plain" / "model.onnx", {SPINNING: "0"})


def test_a_package_is_a_model_of_its_variant(tmp_path: Path) -> None:
    package(tmp_path / "1", of({"nvidia": variant("fast", "none.onnx", ep=CUDA), "any": variant()}))
    config = ModelConfig(name="m", backend="onnxruntime", default_model_filename="manifest.json")
    signature = OnnxRuntimeBackend().inspect(tmp_path / "1", config)
    assert [each.name for each in signature.inputs] == ["INPUT"]


@pytest.mark.parametrize(
    ("components", "more", "kind", "text"),
    [
        (of({"nvidia": variant(ep=CUDA)}), {}, ModelLoadFailed, f"no variant for {CPU}: it has 'nvidia' for {CUDA}"),
        ({**of({"a": variant()}), "b": {"variants": {}}}, {}, ConfigInvalid, "the components 'digits', 'b'"),
        (of({"a": variant()}), {"layout": "installed"}, ConfigInvalid, "has the layout 'installed'"),
        (
            of({"a": variant(session_options={"x": "1"})}),
            {},
            ConfigInvalid,
            "'a' of the model package sets session_options 'x'",
        ),
        (of({"a": variant(provider_options={"y": "1"})}), {}, ConfigInvalid, "sets provider_options 'y'"),
        (of({"a": {**variant(), "executor_info": {}}}), {}, ConfigInvalid, "has no executor_info.ort.model_file"),
        (of({"a": variant(file="../../model.onnx")}), {}, ModelLoadFailed, "refuses its package: "),
        (of({"a": variant(file="/etc/passwd")}), {}, ModelLoadFailed, "refuses its package: "),
        (of({"a": variant("/etc", "passwd")}), {}, ModelLoadFailed, "refuses its package: "),
        (of({"a": variant(file="none.onnx")}), {}, ModelLoadFailed, "refuses its package: "),
        (of({"a": variant(file=5)}), {}, ModelLoadFailed, "refuses its package: "),
        ([], {}, ModelLoadFailed, "'components' must be an object"),
    ],
)
def test_invalid_package_is_refused(
    tmp_path: Path, components: Any, more: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as refused:
        chosen(package(tmp_path, components, **more))
    assert text in str(refused.value)


def test_link_out_of_a_package_is_refused(tmp_path: Path) -> None:
    folder = package(tmp_path / "1", of({"a": variant()}))
    (folder / "plain" / "model.onnx").unlink()
    (folder / "plain" / "model.onnx").symlink_to(MODEL)
    with pytest.raises(ModelLoadFailed, match="refuses its package"):
        chosen(folder)
