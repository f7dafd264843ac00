"""Every backend says the same of a file that is no model at all."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import openvino
import pytest
from openvino import opset13

from tests.unit.backend_serving import config_of
from trident.core.backends.registry import BackendRegistry
from trident.core.config.schema import ModelConfig
from trident.core.errors import ModelLoadFailed

_TREES = 'parameters { key: "is_classifier" value { string_value: "false" } }\n'
_TREES += 'parameters { key: "model_type" value { string_value: "lightgbm" } }\n'

SAVED_MODEL = "model.savedmodel/saved_model.pb"
CONTENTS = {
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS pointer"),
    "empty": (b"", "the file is empty"),
}
FILES = {
    "model.onnx": config_of(""),
    "model.xml": config_of("", backend="openvino"),
    "model.txt": config_of(_TREES, backend="fil"),
    SAVED_MODEL: config_of('platform: "tensorflow_savedmodel"', backend="tensorflow"),
    **({"model.pt": config_of("", backend="pytorch")} if find_spec("torch") else {}),
    "model.pt2": config_of('platform: "torch_aoti"', backend="pytorch"),
}


# An empty SavedModel is a valid message, without tags.
CASES = [(name, kind) for name in FILES for kind in CONTENTS if (name, kind) != (SAVED_MODEL, "empty")]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_pointers_and_empty_files_have_one_hint(name: str, kind: str, tmp_path: Path) -> None:
    content, hint = CONTENTS[kind]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    config: ModelConfig = FILES[name]
    with pytest.raises(ModelLoadFailed) as raised:
        BackendRegistry({}).inspect(tmp_path, config)
    assert hint in (raised.value.hint or "")


def test_weights_that_are_a_pointer_are_named(tmp_path: Path) -> None:
    given = opset13.parameter([-1, 3], openvino.Type.f32, name="x")
    product = opset13.matmul(given, opset13.constant(np.ones((3, 400), np.float32)), False, False)
    path = tmp_path / "model.xml"
    openvino.save_model(openvino.Model([opset13.result(product)], [given], "m"), str(path), compress_to_fp16=False)
    weights = path.with_suffix(".bin")
    complete = weights.read_bytes()
    for content, hint in (
        (b"version https://git-lfs.github.com/spec/v1\n", "'model.bin': the file is a Git LFS pointer"),
        (complete[:100], "'model.bin' is incomplete"),
    ):
        weights.write_bytes(content)
        with pytest.raises(ModelLoadFailed) as raised:
            BackendRegistry({}).inspect(tmp_path, FILES["model.xml"])
        assert (raised.value.hint or "").startswith(hint)
    weights.write_bytes(complete)
    path.write_text(path.read_text().replace('type="MatMul" version="opset1"', 'type="Zap" version="extension"'))
    with pytest.raises(ModelLoadFailed) as raised:
        BackendRegistry({}).inspect(tmp_path, FILES["model.xml"])
    assert "the model has the operator Zap of extension" in (raised.value.hint or "")
