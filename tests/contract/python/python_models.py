"""Models in Python for contract tests, and the processes of their instances."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any

from tests.contract.servers.processes import children_of, workers_of
from tests.contract.servers.server import ServerProcess

CONFIG = """
backend: "python"
max_batch_size: {max_batch_size}
{more}
"""
INT32_PAIR = """
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] }, { name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] },
{ name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 16 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
HEAD = """
import os, sys, time, threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
"""
ADD_SUB = """
def execute(self, requests):
    responses = []
    for request in requests:
        a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
        tensors = [pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)]
        responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
    return responses
"""


def write_model(
    repository: Path, name: str, methods: str = ADD_SUB, more: str = INT32_PAIR, max_batch_size: int = 8
) -> Path:
    """A model directory whose class has these methods. `more` is the rest of its configuration."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(CONFIG.format(max_batch_size=max_batch_size, more=more))
    (version / "model.py").write_text(HEAD + textwrap.indent(textwrap.dedent(methods), "    "))
    return repository / name


def stubs_of(server: ServerProcess) -> dict[str, int]:
    """The processes of the server's model instances, by the names of the instances."""
    return {name: process for process, name in children_of(*workers_of(server)).items()}


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def pair(seed: int = 0) -> dict[str, Any]:
    """A JSON request for the sums and differences of two tensors."""
    tensor = {"datatype": "INT32", "shape": [1, 16]}
    first = {"name": "INPUT0", **tensor, "data": [*range(seed, seed + 16)]}
    return {"inputs": [first, {"name": "INPUT1", **tensor, "data": [3] * 16}]}


def assert_adds(server: ServerProcess, model: str, seed: int = 0) -> None:
    answer = server.json("POST", f"/v2/models/{model}/infer", pair(seed))
    found = {output["name"]: output["data"] for output in answer["outputs"]}
    assert found == {"OUTPUT0": [*range(seed + 3, seed + 19)], "OUTPUT1": [*range(seed - 3, seed + 13)]}
