"""A model of each framework, served over every door, compared with the framework's own answers.

Source: docs/spec/framework-backends.md.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.contract.frameworks.framework_models import NAMES, WIDTH, FrameworkModel, framework_models
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.waiting import until
from trident.core.inference.tensors import Array

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]

# A model in a process of its own is reloaded as a Python model is: one stands for all.
RELOADED = [name for name in NAMES if name != "package"]
RELOADS = 2


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for model in framework_models().values():
        model.write_to(folder)
    return folder


@pytest.fixture(scope="module")
def server(http_workers: str, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    options = ("--shutdown-grace-secs=0", "--model-control-mode=explicit", "--load-model=*")
    with ServerProcess(repository, log, *options) as running:
        yield running


def rows(count: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


def v2_answer(model: FrameworkModel, document: Any) -> Array:
    (output,) = document["outputs"]
    assert output["name"] == model.output
    return np.array(output["data"], np.float32).reshape(output["shape"])


def same(model: FrameworkModel, answer: Array | None, given: Array) -> None:
    expected = model.expected(given)
    assert answer is not None
    assert answer.shape == expected.shape
    np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_http_and_grpc_answer_as_the_framework_does(server: ServerProcess, name: str) -> None:
    model = framework_models()[name]
    for package, address in (
        (tritonclient.http, f"{HOST}:{server.http_port}"),
        (tritonclient.grpc, f"{HOST}:{server.grpc_port}"),
    ):
        with package.InferenceServerClient(address) as client:
            for count in (1, 3, 16):
                given = rows(count)
                inputs = []
                for input_name in model.inputs:
                    inputs.append(package.InferInput(input_name, given.shape, "FP32"))
                    inputs[-1].set_data_from_numpy(given)
                same(model, client.infer(name, inputs).as_numpy(model.output), given)


@pytest.mark.parametrize("name", RELOADED)
def test_no_answer_is_wrong_while_the_model_is_reloaded(server: ServerProcess, name: str) -> None:
    model = framework_models()[name]
    ended = threading.Event()
    failures: list[BaseException] = []
    answered = [0, 0, 0]

    def ask(number: int) -> None:
        try:
            while not ended.is_set():
                given = rows(1 + number, seed=number)
                answer = server.json("POST", f"/v2/models/{name}/infer", model.v2_request(given))
                same(model, v2_answer(model, answer), given)
                answered[number] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(answered))]
    for thread in threads:
        thread.start()
    try:
        for _ in range(RELOADS):
            config = server.json("GET", f"/v2/models/{name}/config")
            # Another count of instances alone would keep the weights; a parameter reloads everything.
            config.setdefault("parameters", {})["reload"] = {"string_value": str(sum(answered))}
            body = {"parameters": {"config": json.dumps(config)}}
            server.json("POST", f"/v2/repository/models/{name}/load", body)
        before = list(answered)
        until(lambda: failures or all(now > then for now, then in zip(answered, before, strict=True)), server.log_text)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert failures == []
