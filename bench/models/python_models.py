"""Models in Python that do what ONNX models do."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.models.repositories import CONFIG, SHIPPED, build_echo

ADD_SUB = "python_simple"
ECHO = "python_identity"

_HEAD = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]
"""
_ADD_SUB = """
    def respond(self, request):
        a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)])
"""
_ECHO = """
    def respond(self, request):
        array = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", array)])
"""
_PYTHON = 'backend: "python"\ninstance_group [ { kind: KIND_CPU count: 1 } ]\n'
_INPUTS, _OUTPUTS = (
    "".join(f'{side} {{ name: "{side.upper()}{n}" data_type: TYPE_INT32 dims: [ 16 ] }}\n' for n in range(2))
    for side in ("input", "output")
)
_MODELS = {
    ADD_SUB: (_PYTHON + "max_batch_size: 64\ndynamic_batching { }\n" + _INPUTS + _OUTPUTS, _ADD_SUB),
    ECHO: (CONFIG.format(batch=64, dims_in="-1", dims_out="-1", batching="").replace("onnxruntime", "python"), _ECHO),
}


def build(repository: Path) -> None:
    """Write all of them and the two ONNX models under `repository`, which is emptied first."""
    shutil.rmtree(repository, ignore_errors=True)
    shutil.copytree(SHIPPED / "simple", repository / "simple")
    build_echo(repository)
    for name in _MODELS:
        build_one(repository, name)


def build_one(repository: Path, name: str = ADD_SUB) -> None:
    config, code = _MODELS[name]
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    (repository / name / "1" / "model.py").write_text(_HEAD + code)
