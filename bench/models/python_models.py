"""Models in Python: two that do what ONNX models do, and some that do what only Python models can."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.models.repositories import CONFIG, SHIPPED, build_echo

CALLS = 200
"""How many requests `caller` sends for one of its own."""
RESPONSES = 1000
"""How many responses `streamer` sends for one request."""

ADD_SUB = "python_simple"
ECHO = "python_identity"
CALLER = "caller"
STREAMER = "streamer"
CLOCK = "clock"

_HEAD = """
import time

import numpy as np
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
_CALLER = f"""
    def respond(self, request):
        inputs = [
            pb_utils.get_input_tensor_by_name(request, name).as_numpy().copy() for name in ("INPUT0", "INPUT1")
        ]
        took = np.empty((1, {CALLS}), np.float64)
        for index in range({CALLS}):
            began = time.perf_counter()
            asked = pb_utils.InferenceRequest(
                model_name="simple",
                requested_output_names=["OUTPUT0", "OUTPUT1"],
                inputs=[pb_utils.Tensor("INPUT0", inputs[0]), pb_utils.Tensor("INPUT1", inputs[1])],
            )
            response = asked.exec()
            took[0, index] = time.perf_counter() - began
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
        return pb_utils.InferenceResponse([pb_utils.Tensor("SECONDS", took)])
"""
_STREAMER = f"""
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for _ in range({RESPONSES}):
                tensor = pb_utils.Tensor("WORD", np.array([b"{"x" * 16}"], np.object_))
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# The first response has the time at which it is sent, in nanoseconds of the machine's monotonic clock.
_CLOCK = """
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            now = str(time.monotonic_ns()).encode()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("WORD", np.array([now], np.object_))]))
            time.sleep(0.005)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_PYTHON = 'backend: "python"\ninstance_group [ { kind: KIND_CPU count: 1 } ]\n'
_INPUTS, _OUTPUTS = (
    "".join(f'{side} {{ name: "{side.upper()}{n}" data_type: TYPE_INT32 dims: [ 16 ] }}\n' for n in range(2))
    for side in ("input", "output")
)
_SECONDS = f'output {{ name: "SECONDS" data_type: TYPE_FP64 dims: [ {CALLS} ] }}\n'
_WORDS = (
    "model_transaction_policy { decoupled: true }\n"
    'input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }\n'
    'output { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] }\n'
)
_MODELS = {
    ADD_SUB: (_PYTHON + "max_batch_size: 64\ndynamic_batching { }\n" + _INPUTS + _OUTPUTS, _ADD_SUB),
    ECHO: (
        CONFIG.format(batch=64, dims_in="-1", dims_out="-1", batching="").replace("onnxruntime", "python"),
        _ECHO,
    ),
    CALLER: (_PYTHON + "max_batch_size: 1\n" + _INPUTS + _SECONDS, _CALLER),
    STREAMER: (_PYTHON + _WORDS, _STREAMER),
    CLOCK: (_PYTHON + _WORDS, _CLOCK),
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
