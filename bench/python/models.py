"""The models of the benchmark: ONNX models, Python models of the same function, and those that only Python has."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.models.served import CONFIG, SHIPPED, identity, write

CALLS = 200
"""How many requests `caller` sends for one of its own."""
RESPONSES = 1000
"""How many responses `streamer` sends for one request."""
RESPONSE_BYTES = 16

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
                tensor = pb_utils.Tensor("WORD", np.array([b"{"x" * RESPONSE_BYTES}"], np.object_))
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
_PAIR = "".join(
    f'{side} {{ name: "{side.upper()}{n}" data_type: TYPE_INT32 dims: [ 16 ] }}\n'
    for side in ("input", "output")
    for n in range(2)
)
_INPUTS = "".join(f'input {{ name: "INPUT{n}" data_type: TYPE_INT32 dims: [ 16 ] }}\n' for n in range(2))
_ONE = "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
_PYTHON = 'backend: "python"\n' + _ONE


def build(repository: Path) -> None:
    """Write all models under `repository`, which is emptied first."""
    shutil.rmtree(repository, ignore_errors=True)
    shutil.copytree(SHIPPED / "simple", repository / "simple")
    echo = CONFIG.format(batch=64, dims_in="-1", dims_out="-1", batching="")
    write(repository / "identity", echo, identity(["D"]))
    build_add_sub(repository)
    _write(repository / ECHO, echo.replace("onnxruntime", "python"), _HEAD + _ECHO)
    seconds = f'output {{ name: "SECONDS" data_type: TYPE_FP64 dims: [ {CALLS} ] }}\n'
    _write(repository / CALLER, _PYTHON + "max_batch_size: 1\n" + _INPUTS + seconds, _HEAD + _CALLER)
    words = (
        "model_transaction_policy { decoupled: true }\n"
        'input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }\n'
        'output { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] }\n'
    )
    _write(repository / STREAMER, _PYTHON + words, _HEAD + _STREAMER)
    _write(repository / CLOCK, _PYTHON + words, _HEAD + _CLOCK)


def build_add_sub(repository: Path) -> None:
    """Write the model that adds and subtracts, alone."""
    _write(repository / ADD_SUB, _PYTHON + "max_batch_size: 64\ndynamic_batching { }\n" + _PAIR, _HEAD + _ADD_SUB)


def _write(folder: Path, config: str, code: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    (folder / "1" / "model.py").write_text(code)
