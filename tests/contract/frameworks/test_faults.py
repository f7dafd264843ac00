"""Modules that never end or take all memory, a package for another processor, and one that serves sequences.

Source: docs/spec/framework-backends.md; docs/backends.md.
"""

from __future__ import annotations

import json
import shutil
import warnings
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http

from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch"),
]

# What the module below does with a row.
ENDLESS, HUNGRY = 1, 2
LIMITED = """
backend: "pytorch"
runtime: "model.py"
default_model_filename: "model.pt"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "EXECUTION_LIMIT_SECONDS" value { string_value: "4" } }
parameters { key: "MEMORY_LIMIT_BYTES" value { string_value: "1.5e9" } }
"""
SUMS = """
platform: "torch_aoti"
max_batch_size: 4
input { name: "ARGS[0]" data_type: TYPE_FP32 dims: 1 }
output { name: "RESULT[0]" data_type: TYPE_FP32 dims: 1 }
instance_group { count: 1 kind: KIND_CPU }
sequence_batching {
  oldest { max_candidate_sequences: 4 }
  control_input { name: "ARGS[1]" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
  state { input_name: "ARGS[2]" output_name: "RESULT[1]" data_type: TYPE_FP32 dims: 1 }
}
"""


def write_limited(version: Path) -> None:
    import torch

    class Endless(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            steps = x
            while bool((x != 0).any()):
                steps = torch.empty([steps.numel() * 1024]) if bool((x > 1).any()) else steps + x
            return steps[: len(x)]

    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(LIMITED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Endless()).save(str(version / "model.pt"))


def write_sums(version: Path) -> None:
    import torch

    class Sums(torch.nn.Module):
        def forward(self, x: torch.Tensor, start: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
            total = x + state * (1 - start)
            return total, total + 0

    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(SUMS)
    rows: Any = torch.export.Dim("rows", min=1, max=4)
    example = tuple(torch.zeros(2, 1) for _ in range(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Sums(), example, dynamic_shapes=({0: rows},) * 3)
        torch.export.save(program, version / "model.pt2")


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("faults")
    repository = folder / "models"
    write_limited(repository / "limited" / "1")
    write_sums(repository / "sums" / "1")
    shutil.copytree(repository / "sums", repository / "foreign")
    with zipfile.ZipFile(repository / "foreign" / "1" / "model.pt2", "a") as archive:
        archive.writestr("model/data/aotinductor/model/x_metadata.json", json.dumps({"AOTI_CPU_ISA": "AVX9000"}))
    options = ("--shutdown-grace-secs=0", "--model-control-mode=explicit")
    loaded = [f"--load-model={name}" for name in ("limited", "sums")]
    with ServerProcess(repository, folder / "log", *options, *loaded) as running:
        yield running


def answer_of(server: ServerProcess, value: float) -> tuple[int, Any]:
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [value]}
    status, _, body = server.request("POST", "/v2/models/limited/infer", json.dumps({"inputs": [tensor]}).encode())
    return status, json.loads(body)


def test_a_module_in_a_process_of_its_own_is_limited(server: ServerProcess) -> None:
    assert answer_of(server, 0)[0] == 200
    status, answer = answer_of(server, HUNGRY)
    assert (status, "can't allocate memory" in answer["error"]) == (500, True), answer
    assert answer_of(server, 0)[0] == 200
    status, answer = answer_of(server, ENDLESS)
    limit = "was killed because an execution took longer than EXECUTION_LIMIT_SECONDS (4 s) allows"
    assert (status, answer["hint"]) == (500, limit)
    # Its process is started again.
    until(lambda: answer_of(server, 0)[0] == 200, server.log_text)


def test_a_package_for_another_processor_is_not_loaded(server: ServerProcess) -> None:
    status, _, body = server.request("POST", "/v2/repository/models/foreign/load", b"{}")
    assert status == 400
    assert "was compiled for a processor with avx9000, which this one has not" in json.loads(body)["error"]


def test_a_package_serves_sequences_with_controls_and_state(server: ServerProcess) -> None:
    with tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}") as client:
        totals: dict[int, list[float]] = {1: [], 2: []}
        for step in range(3):
            for sequence in totals:
                given = tritonclient.http.InferInput("ARGS[0]", [1, 1], "FP32")
                given.set_data_from_numpy(np.full((1, 1), sequence, np.float32))
                answer = client.infer(
                    "sums", [given], sequence_id=sequence, sequence_start=step == 0, sequence_end=step == 2
                )
                totals[sequence].append(float(answer.as_numpy("RESULT[0]").item()))
    assert totals == {1: [1, 2, 3], 2: [2, 4, 6]}
