"""A model of each framework, served over every door, compared with the framework's own answers.

Source: docs/spec/framework-backends.md.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.contract.frameworks.framework_models import NAMES, WIDTH, FrameworkModel, framework_model, framework_models
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.waiting import until
from trident.core.inference.tensors import Array

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]

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
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for model in framework_models().values():
        model.write_to(folder)
    if "package" in framework_models():
        write_sums(folder / "sums" / "1")
    return folder


@pytest.fixture(scope="module")
def server(http_workers: str, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    options = ("--shutdown-grace-secs=0", "--model-control-mode=explicit", "--load-model=*")
    with ServerProcess(repository, log, *options) as running:
        yield running


def rows(count: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


def check_answer(client: Any, package: Any, model: FrameworkModel, given: Array) -> None:
    """`package` is the one of the client."""
    inputs = [package.InferInput(name, given.shape, "FP32") for name in model.inputs]
    for each in inputs:
        each.set_data_from_numpy(given)
    answer, expected = client.infer(model.name, inputs).as_numpy(model.output), model.expected(given)
    assert answer.shape == expected.shape
    np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_http_and_grpc_answer_as_the_framework_does(server: ServerProcess, name: str) -> None:
    for package, port in ((tritonclient.http, server.http_port), (tritonclient.grpc, server.grpc_port)):
        with package.InferenceServerClient(f"{HOST}:{port}") as client:
            for count in (1, 3, 16):
                check_answer(client, package, framework_model(name), rows(count))


# A model in a process of its own is reloaded as a Python model is: one stands for all.
@pytest.mark.parametrize("name", [name for name in NAMES if name != "package"])
def test_answers_are_correct_during_reloads(server: ServerProcess, name: str) -> None:
    model = framework_model(name)
    answered, ended = [0, 0, 0], threading.Event()

    def ask(number: int) -> None:
        with tritonclient.http.InferenceServerClient(server.address, network_timeout=60) as client:
            while not ended.is_set():
                check_answer(client, tritonclient.http, model, rows(1 + number, seed=number))
                answered[number] += 1

    with ThreadPoolExecutor(len(answered)) as threads:
        asking = [threads.submit(ask, number) for number in range(len(answered))]
        try:
            for count in range(2):
                config = server.json("GET", f"/v2/models/{name}/config")
                # Another count of instances alone would keep the weights; a parameter reloads everything.
                config.setdefault("parameters", {})["reload"] = {"string_value": str(count)}
                body = {"parameters": {"config": json.dumps(config)}}
                server.json("POST", f"/v2/repository/models/{name}/load", body)
            before = list(answered)
            until(lambda: all(now > then for now, then in zip(answered, before, strict=True)), server.log_text)
        finally:
            ended.set()
        for each in asking:
            each.result()


def test_package_serves_sequences_with_controls_and_state(server: ServerProcess) -> None:
    framework_model("package")
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
