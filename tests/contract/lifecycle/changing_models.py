"""Models that a test changes while a server serves them: known weights, blocked loads, the index."""

from __future__ import annotations

import base64
import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.contract.python.python_models import write_model
from tests.contract.servers.server import ServerProcess
from tests.unit.onnx_models import build, constant, tensor, write_version
from tests.waiting import until

INDEX = "/v2/repository/index"
JSON = {"Content-Type": "application/json"}
WIDTH = 4
BATCHED = "max_batch_size: 8"
OVERRIDE = '{"backend": "onnxruntime", "max_batch_size": 3}'  # a configuration for a load request
UNLOADED = {"state": "UNAVAILABLE", "reason": "unloaded"}
_GATED = """
def initialize(self, args):
    with open(os.path.join(args["model_repository"], "gate")) as pipe:
        self.factor = np.float32(pipe.read())

def execute(self, requests):
    inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each * self.factor)]) for each in inputs]
"""
_GATED_TENSORS = """
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] }
instance_group { kind: KIND_CPU }
"""


# --- models


def scaled(factor: float) -> onnx.ModelProto:
    """INPUT0 FP32 [batch, 4] -> OUTPUT0, multiplied by `factor`: the answer to ones shows the weights."""
    return build(
        [helper.make_node("Mul", ["INPUT0", "FACTOR"], ["OUTPUT0"])],
        [tensor("INPUT0", "FP32", ["batch", WIDTH])],
        [tensor("OUTPUT0", "FP32", ["batch", WIDTH])],
        [constant("FACTOR", [factor], "FP32")],
    )


def heavy(factor: float, megabytes: int) -> onnx.ModelProto:
    """INPUT0 FP32 [batch, 4] -> OUTPUT0, multiplied by `factor` from a table of `megabytes` of weights.

    The lookup depends on the input, so no optimisation can remove the table.
    """
    table = np.full(megabytes << 18, factor, np.float32)
    return build(
        [
            helper.make_node("Cast", ["INPUT0"], ["PLACE"], to=onnx.TensorProto.INT64),
            helper.make_node("Gather", ["TABLE", "PLACE"], ["FACTOR"]),
            helper.make_node("Mul", ["INPUT0", "FACTOR"], ["OUTPUT0"]),
        ],
        [tensor("INPUT0", "FP32", ["batch", WIDTH])],
        [tensor("OUTPUT0", "FP32", ["batch", WIDTH])],
        [constant("TABLE", table, "FP32")],
    )


def add_scaled(repository: Path, name: str, factor: float, config: str = BATCHED) -> Path:
    """Write a model of `scaled(factor)`. Returns its directory."""
    return write_version(scaled(factor), repository, name, config).parent


def replace_weights(model: Path, version: int, factor: float) -> None:
    """Replace the weights of a version with `scaled(factor)` atomically."""
    folder = model / str(version)
    aside = model.with_name(f"{model.name}.onnx.part")
    aside.write_bytes(scaled(factor).SerializeToString())
    folder.mkdir(exist_ok=True)
    aside.replace(folder / "model.onnx")


class Gate:
    """A model that reads a pipe when it is loaded: every load blocks until `open`, which releases one load."""

    def __init__(self, repository: Path, name: str, factor: float) -> None:
        self.model = write_model(repository, name, _GATED, _GATED_TENSORS)
        self._factor = factor
        self._pipe = self.model / "gate"
        os.mkfifo(self._pipe)

    def open(self) -> None:
        until(self._opened, f"nobody loads {self.model.name}")

    def _opened(self) -> bool:
        try:
            pipe = os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return False
        try:
            os.write(pipe, str(self._factor).encode())
        finally:
            os.close(pipe)
        return True


# --- client calls


def index(server: ServerProcess, name: str) -> list[dict[str, str]]:
    """The index entries of a model, without its name."""
    entries: list[dict[str, str]] = server.json("POST", INDEX)
    return [{key: value for key, value in e.items() if key != "name"} for e in entries if e["name"] == name]


def state(server: ServerProcess, name: str) -> str:
    """The state of the only version of a model; "" before its first load."""
    (entry,) = index(server, name)
    return entry.get("state", "")


def load(server: ServerProcess, name: str, **parameters: str) -> tuple[int, str]:
    """Load a model. Returns the status and the error text or ""."""
    return control(server, f"/v2/repository/models/{name}/load", {"parameters": parameters} if parameters else None)


def unload(server: ServerProcess, name: str) -> tuple[int, str]:
    return control(server, f"/v2/repository/models/{name}/unload")


def unload_and_wait(server: ServerProcess, name: str) -> None:
    assert unload(server, name) == (200, "")
    until(lambda: state(server, name) == "UNAVAILABLE", f"{name} is still there")


def control(server: ServerProcess, path: str, document: Any = None) -> tuple[int, str]:
    body = None if document is None else json.dumps(document).encode()
    status, _, answer = server.request("POST", path, body, JSON)
    return status, json.loads(answer)["error"] if answer else ""


def base64_of(content: bytes) -> str:
    """The content of a file in a load request."""
    return base64.b64encode(content).decode()


def ones_body() -> bytes:
    """A request whose answer is the factor of a `scaled` or `heavy` model."""
    item = {"name": "INPUT0", "datatype": "FP32", "shape": [1, WIDTH], "data": [1.0] * WIDTH}
    return json.dumps({"inputs": [item]}).encode()


def factor_in(answer: bytes) -> float:
    """The factor in an answer to `ones_body`. All its elements must be equal."""
    values = set(json.loads(answer)["outputs"][0]["data"])
    assert len(values) == 1, values
    return float(values.pop())


def factor_of(server: ServerProcess, name: str) -> float:
    """The factor that the model serves with."""
    status, _, answer = server.request("POST", f"/v2/models/{name}/infer", ones_body(), JSON)
    assert status == 200, answer
    return factor_in(answer)
