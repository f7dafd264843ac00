"""A model of each framework, served over every door, compared with the framework's own answers.

Source: docs/spec/framework-backends.md.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.contract.frameworks.framework_models import NAMES, WIDTH, FrameworkModel, framework_models
from tests.contract.sagemaker.sagemaker_container import SageMakerContainer
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.contract.vertex.vertex_container import VertexContainer
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


@pytest.mark.parametrize("name", NAMES)
def test_what_a_framework_might_read_beyond_is_refused_before_it(server: ServerProcess, name: str) -> None:
    model = framework_models()[name]

    def asked(shape: tuple[int, ...], datatype: str) -> tuple[int, str]:
        document = model.v2_request(np.ones(shape, np.float32))
        for tensor in document["inputs"]:
            tensor["datatype"] = datatype
        status, _, body = server.request("POST", f"/v2/models/{name}/infer", json.dumps(document).encode())
        return status, json.loads(body).get("error", "")

    for shape, datatype, text in (
        ((17, WIDTH), "FP32", "batch-size must be <= 16"),
        ((1, WIDTH), "FP64", "data-type"),
        ((1, WIDTH - 1), "FP32", "unexpected shape"),
        ((WIDTH,), "FP32", "unexpected shape"),
    ):
        status, error = asked(shape, datatype)
        assert (status, text in error) == (400, True), error
    assert asked((1, WIDTH), "FP32") == (200, "")


@pytest.mark.parametrize("name", NAMES)
def test_requests_at_the_same_time_share_executions(server: ServerProcess, name: str) -> None:
    model = framework_models()[name]

    def shared() -> int:
        """How many requests had no execution of their own so far."""
        statistics = server.json("GET", f"/v2/models/{name}/stats")["model_stats"][0]
        return int(statistics["inference_count"]) - int(statistics["execution_count"])

    def ask(number: int) -> None:
        while not ended.is_set():
            given = rows(1, seed=number)
            same(
                model, v2_answer(model, server.json("POST", f"/v2/models/{name}/infer", model.v2_request(given))), given
            )

    # Requests of one row each from now on.
    before = shared()
    ended = threading.Event()
    with ThreadPoolExecutor(6) as threads:
        asking = [threads.submit(ask, number) for number in range(6)]
        try:
            until(lambda: any(each.done() for each in asking) or shared() > before, server.log_text)
        finally:
            ended.set()
    for each in asking:
        each.result()


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


def test_sagemaker_and_vertex_answer_as_the_framework_does(repository: Path, tmp_path: Path) -> None:
    given = rows(3)
    # Without PyTorch, whose import takes seconds in each process: what it answers passes these doors as this does.
    models = [framework_models()[name] for name in ("trees", "vino", "graph")]
    explicit = ["--model-control-mode=explicit", *(f"--load-model={model.name}" for model in models)]
    with VertexContainer(tmp_path, repository, "--vertex-ai-default-model=trees", *explicit) as vertex:
        for model in models:
            target = f"v2/models/{model.name}/infer"
            answer = vertex.post(model.v2_request(given), X_Vertex_Ai_Triton_Redirect=target)
            same(model, v2_answer(model, answer.document), given)
    root = tmp_path / "archives"
    variables = {"SAGEMAKER_MULTI_MODEL": "true", "TRIDENT_SAGEMAKER_MODELS_ROOT": str(root)}
    with SageMakerContainer(tmp_path / "sagemaker.log", **variables) as sagemaker:
        for model in models:
            model.write_to(root / model.name / "model")
            assert sagemaker.load(model.name, f"{root}/{model.name}/model").status == 200
            body = json.dumps(model.v2_request(given)).encode()
            invoked = sagemaker.ask("POST", f"/models/{model.name}/invoke", body, Content_Type="application/json")
            same(model, v2_answer(model, json.loads(invoked.body)), given)
