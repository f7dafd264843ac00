"""Models on a real GPU behind a real server: answers, shared memory of the GPU, its memory, and a context that is lost.

Source: docs/gpu.md; docs/shared-memory.md; docs/spec/python-backend.md.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from onnx import helper

from bench.models.networks import resnet
from tests.contract.ensembles.ensemble_models import step, write_ensemble
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import STOP_LIMIT_S, ServerProcess
from tests.contract.shared_memory.client_regions import speaker
from tests.genai_folders import WORDS, write_counter
from tests.hub_folders import mean_of, write_folder
from tests.unit import onnx_models
from tests.unit.onnx_serving import add_sub_config, usable_gpus
from tests.waiting import until
from trident.core.inference.tensors import Array
from trident.core.observability.hardware import gpu_memory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.shapes("one-process", "front-ends"),
    pytest.mark.skipif(not usable_gpus(), reason="no GPU, or an ONNX Runtime without CUDA"),
]
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="no PyTorch")

ON_GPU = "instance_group { kind: KIND_GPU }\n"
ON_TWO = "instance_group { kind: KIND_GPU count: 2 }\n"
BATCHING = "dynamic_batching { max_queue_delay_microseconds: 2000 }\n"
MIB = 1 << 20
ARENA = 256 * MIB

PYTHON = """
import torch
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        assert args["model_instance_kind"] == "GPU", args
        self.device = torch.device("cuda", int(args["model_instance_device_id"]))

    def execute(self, requests):
        answers = []
        for request in requests:
            given = torch.from_numpy(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()).to(self.device)
            doubled = pb_utils.Tensor.from_dlpack("OUT", torch.utils.dlpack.to_dlpack(given * 2))
            answers.append(pb_utils.InferenceResponse([doubled]))
        return answers
"""
PYTHON_CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""
TORCH_CONFIG = """
platform: "pytorch_libtorch"
max_batch_size: 8
input { name: "INPUT__0" data_type: TYPE_INT64 dims: 1 }
output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [1, 4] }
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    onnx_models.write_version(onnx_models.add_sub("FP32"), models, "graph", add_sub_config("FP32") + ON_TWO + BATCHING)
    onnx_models.write_version(
        onnx_models.allocating(),
        models,
        "allocating",
        f'backend: "onnxruntime"\n{ON_GPU}parameters {{ key: "gpu_mem_limit" value {{ string_value: "{ARENA}" }} }}\n',
    )
    first = step("graph", {"INPUT0": "IN", "INPUT1": "IN"}, {"OUTPUT0": "SUM"})
    second = step("graph", {"INPUT0": "SUM", "INPUT1": "IN"}, {"OUTPUT0": "OUT"})
    write_ensemble(models, "ensemble", [("IN", "TYPE_FP32", [16])], [("OUT", "TYPE_FP32", [16])], [first, second])
    if find_spec("torch") is not None:
        write_python_model(models)
        write_embedding(models)
    write_folder(models / "embedder")
    if has_generator():
        write_counter(models / "counter", gpu=True)
    onnx_models.write_version(weights(64), models, "weights", f'backend: "onnxruntime"\n{ON_GPU}')
    onnx_models.write_version(resnet(), models, "resnet", f'backend: "onnxruntime"\nmax_batch_size: 4\n{ON_GPU}')
    return models


def has_generator() -> bool:
    """True if ONNX Runtime GenAI is installed with CUDA."""
    try:
        return bool(metadata.version("onnxruntime-genai-cuda"))
    except metadata.PackageNotFoundError:
        return False


def write_python_model(models: Path) -> None:
    (models / "python" / "1").mkdir(parents=True)
    (models / "python" / "1" / "model.py").write_text(PYTHON)
    (models / "python" / "config.pbtxt").write_text(PYTHON_CONFIG + ON_GPU)


def write_embedding(models: Path) -> None:
    """A TorchScript whose context is lost by an index beyond its ten rows."""
    import torch

    (models / "embedding" / "1").mkdir(parents=True)
    layer = torch.nn.Embedding(10, 4)
    layer.weight.data = torch.arange(40, dtype=torch.float32).reshape(10, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(layer, torch.zeros(1, 1, dtype=torch.int64))
    traced.save(str(models / "embedding" / "1" / "model.pt"))
    (models / "embedding" / "config.pbtxt").write_text(TORCH_CONFIG + ON_GPU)


def weights(megabytes: int) -> onnx.ModelProto:
    """X FP32 [n, 1024] -> Y [n, columns]: a product with so much weight."""
    columns = megabytes * MIB // 4096
    values = np.ones((1024, columns), np.float32)
    return onnx_models.build(
        [helper.make_node("MatMul", ["X", "W"], ["Y"])],
        [onnx_models.tensor("X", "FP32", ["n", 1024])],
        [onnx_models.tensor("Y", "FP32", ["n", columns])],
        [helper.make_tensor("W", 1, values.shape, values.tobytes(), raw=True)],
    )


@pytest.fixture(scope="module")
def server(http_workers: str, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    options = ("--shutdown-grace-secs=0", "--allow-client-shm=true", "--model-control-mode=explicit")
    loaded = ["graph", "ensemble", "resnet", "embedder", *(["python", "embedding"] if find_spec("torch") else [])]
    loaded += ["counter"] if has_generator() else []
    with ServerProcess(models, log, *options, *(f"--load-model={name}" for name in loaded)) as running:
        yield running


def infer(server: ServerProcess, model: str, **inputs: Array) -> tuple[int, dict[str, Array] | str]:
    """The status, and the outputs or the error's text."""
    datatypes = {"float32": "FP32", "int64": "INT64"}
    tensors = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": datatypes[array.dtype.name],
            "data": array.ravel().tolist(),
        }
        for name, array in inputs.items()
    ]
    status, _, body = server.request("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": tensors}).encode())
    document = json.loads(body)
    if status != 200:
        return status, str(document["error"])
    return status, {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in document["outputs"]}


def outputs(server: ServerProcess, model: str, **inputs: Array) -> dict[str, Array]:
    status, answer = infer(server, model, **inputs)
    assert status == 200, answer
    assert isinstance(answer, dict)
    return answer


def load(server: ServerProcess, model: str, verb: str = "load") -> None:
    status, _, body = server.request("POST", f"/v2/repository/models/{model}/{verb}", b"{}")
    assert status == 200, body


def metrics(server: ServerProcess) -> str:
    return server.request("GET", "/metrics", port=server.metrics_port)[2].decode()


def memory_used() -> int:
    (memory,) = gpu_memory(None)[:1]
    assert memory is not None
    return memory[1]


def model_memory(server: ServerProcess, model: str) -> int:
    """GPU memory of a model according to the metrics."""
    page = metrics(server)
    found = re.search(rf'^trident_model_memory_bytes{{.*model="{model}".*}} (\S+)', page, re.MULTILINE)
    assert found, page
    return int(float(found[1]))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_concurrent_requests_are_answered_correctly(server: ServerProcess, protocol: str) -> None:
    module = triton_http if protocol == "http" else triton_grpc
    address = server.address if protocol == "http" else f"{HOST}:{server.grpc_port}"

    def ask(number: int) -> bool:
        with module.InferenceServerClient(address) as client:
            given = [np.full((1, 16), number + each, np.float32) for each in range(2)]
            inputs = [module.InferInput(f"INPUT{each}", [1, 16], "FP32") for each in range(2)]
            for each, values in zip(inputs, given, strict=True):
                each.set_data_from_numpy(values)
            answer = client.infer("graph", inputs)
            added, subtracted = (answer.as_numpy(f"OUTPUT{each}") for each in range(2))
            return bool((added == given[0] + given[1]).all() and (subtracted == given[0] - given[1]).all())

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(ask, range(200)))


def test_convolutional_network_answers_as_on_the_cpu(server: ServerProcess, models: Path) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(models / "resnet" / "1" / "model.onnx", providers=["CPUExecutionProvider"])
    given = np.random.default_rng(1).normal(size=(2, 3, 224, 224)).astype(np.float32)
    (expected,) = session.run(["OUTPUT"], {"INPUT": given})
    with triton_http.InferenceServerClient(server.address, network_timeout=60) as client:
        tensor = triton_http.InferInput("INPUT", list(given.shape), "FP32")
        tensor.set_data_from_numpy(given)
        found = client.infer("resnet", [tensor]).as_numpy("OUTPUT")
    # TF32 keeps ten bits of a product's factors.
    assert np.abs(found - expected).max() < 0.01 * np.abs(expected).max()


def test_convolutional_network_runs_at_one_batch_size(server: ServerProcess, models: Path) -> None:
    """Each change would cost as much as many executions."""
    assert "a change of the batch size takes model 'resnet'" in server.log_text()
    images = np.random.default_rng(2).normal(size=(8, 3, 224, 224)).astype(np.float32)

    def ask(number: int) -> Array:
        with triton_http.InferenceServerClient(server.address, network_timeout=60) as client:
            tensor = triton_http.InferInput("INPUT", [1, 3, 224, 224], "FP32")
            tensor.set_data_from_numpy(images[number : number + 1])
            answer: Array = client.infer("resnet", [tensor]).as_numpy("OUTPUT")
            return answer

    alone = [ask(number) for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(5):
            for found, expected in zip(threads.map(ask, range(8)), alone, strict=True):
                assert np.abs(found - expected).max() < 0.01 * np.abs(expected).max()
    (statistics,) = server.json("GET", "/v2/models/resnet/stats")["model_stats"]
    assert {bucket["batch_size"] for bucket in statistics["bucket_stats"]} <= {1, 2, 4}


def test_ensemble_of_models_on_the_gpu(server: ServerProcess) -> None:
    given = np.arange(16, dtype=np.float32).reshape(1, 16)
    assert (outputs(server, "ensemble", IN=given)["OUT"] == given * 3).all()


@needs_torch
def test_python_model_answers_from_memory_of_its_gpu(server: ServerProcess) -> None:
    given = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert (outputs(server, "python", IN=given)["OUT"] == given * 2).all()


@needs_torch
def test_torch_script_runs_on_the_gpu(server: ServerProcess) -> None:
    answer = outputs(server, "embedding", INPUT__0=np.array([[3], [9]], np.int64))["OUTPUT__0"]
    assert answer.tolist() == [[[12, 13, 14, 15]], [[36, 37, 38, 39]]]


def test_texts_become_vectors_on_the_gpu(server: ServerProcess) -> None:
    status, _, body = server.request("GET", "/v2/models/embedder/config")
    assert [group["kind"] for group in json.loads(body)["instance_group"]] == ["KIND_GPU"], (status, body)
    texts = ["good cat", "bad", "anna lives in paris", "who is this about"]

    def vectors_of(first: int) -> list[list[float]]:
        asked = {"model": "embedder", "input": texts[first:]}
        status, _, body = server.request("POST", "/v1/embeddings", json.dumps(asked).encode())
        assert status == 200, body
        return [each["embedding"] for each in json.loads(body)["data"]]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(vectors_of, [*range(4)] * 8))
    for first, answer in zip([*range(4)] * 8, answers, strict=True):
        np.testing.assert_allclose(answer, [mean_of(text) for text in texts[first:]], rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(not has_generator(), reason="no onnxruntime-genai-cuda")
def test_texts_are_generated_on_the_gpu(server: ServerProcess) -> None:
    status, _, body = server.request("GET", "/v2/models/counter/config")
    assert [group["kind"] for group in json.loads(body)["instance_group"]] == ["KIND_GPU"], (status, body)

    def text_after(words: int) -> str:
        asked = {"model": "counter", "prompt": "".join(f" {word}" for word in WORDS[:words])}
        status, _, body = server.request("POST", "/v1/completions", json.dumps(asked).encode())
        assert status == 200, body
        return str(json.loads(body)["choices"][0]["text"])

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(text_after, range(1, 9)))
    assert texts == ["".join(f" {word}" for word in WORDS[count:]) for count in range(1, 9)]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tensors_are_read_from_and_written_to_memory_of_the_gpu(server: ServerProcess, protocol: str) -> None:
    shm = pytest.importorskip("tritonclient.utils.cuda_shared_memory")
    given, size = np.arange(32, dtype=np.float32).reshape(2, 16), 128
    read, written = (shm.create_shared_memory_region(name, size * 2, 0) for name in ("read", "written"))
    try:
        with speaker(protocol, server) as asking:
            for name, region in (("read", read), ("written", written)):
                handle = shm.get_raw_handle(region)
                asking.client.register_cuda_shared_memory(name, handle, 0, size * 2)
            for _ in range(3):
                shm.set_shared_memory_region(read, [given, given])
                inputs = [
                    asking.shared_input(f"INPUT{each}", [2, 16], "FP32", "read", size, each * size) for each in range(2)
                ]
                answers = [asking.shared_output(f"OUTPUT{each}", "written", size, each * size) for each in range(2)]
                asking.client.infer("graph", inputs, outputs=answers)
                assert (shm.get_contents_as_numpy(written, np.float32, [2, 16]) == given * 2).all()
                given = given + 1
            asking.client.unregister_cuda_shared_memory()
    finally:
        for region in (read, written):
            shm.destroy_shared_memory_region(region)


def test_gpu_is_in_the_metrics(server: ServerProcess) -> None:
    page = metrics(server)
    gauges = ("utilization", "memory_total_bytes", "memory_used_bytes", "power_usage", "power_limit")
    for name in (*(f"nv_gpu_{gauge}" for gauge in gauges), "nv_energy_consumption"):
        assert re.search(rf'^{name}{{gpu_uuid="GPU-[^"]+"}} \S+', page, re.MULTILINE), name


def test_gpu_memory_of_a_load_is_measured_and_freed_by_the_unload(server: ServerProcess) -> None:
    before = memory_used()
    load(server, "weights")
    answer = outputs(server, "weights", X=np.ones((1, 1024), np.float32))["Y"]
    assert (answer == 1024).all()
    assert 64 * MIB <= model_memory(server, "weights") < 512 * MIB
    assert memory_used() - before >= 64 * MIB
    load(server, "weights", "unload")
    until(lambda: memory_used() - before < 32 * MIB, server.log_text)


def test_request_beyond_the_arena_is_refused_and_the_next_is_served(server: ServerProcess) -> None:
    load(server, "allocating")
    few, many = (np.array([size], np.int64) for size in (1000, ARENA))
    assert outputs(server, "allocating", SIZE=few)["ZEROS"].shape == (1000,)
    status, text = infer(server, "allocating", SIZE=many)
    assert status == 503, text
    assert outputs(server, "allocating", SIZE=few)["ZEROS"].shape == (1000,)
    load(server, "allocating", "unload")


def test_idle_model_frees_memory_of_executions(models: Path, tmp_path: Path) -> None:
    options = ("--shutdown-grace-secs=0", "--gpu-memory-idle-secs=1", "--model-control-mode=explicit")
    with ServerProcess(models, tmp_path / "log", *options, "--load-model=allocating") as server:
        outputs(server, "allocating", SIZE=np.array([10], np.int64))
        before = memory_used()
        with triton_http.InferenceServerClient(server.address, network_timeout=60) as client:
            size = triton_http.InferInput("SIZE", [1], "INT64")
            size.set_data_from_numpy(np.array([ARENA // 8], np.int64))
            assert client.infer("allocating", [size]).as_numpy("ZEROS").shape == (ARENA // 8,)
        assert memory_used() - before >= ARENA // 2
        until(lambda: memory_used() - before < ARENA // 4, server.log_text)
        outputs(server, "allocating", SIZE=np.array([10], np.int64))


@needs_torch
@pytest.mark.parametrize("workers", [0, 2])
def test_lost_context_ends_the_server(models: Path, tmp_path: Path, workers: int) -> None:
    options = ("--shutdown-grace-secs=0", "--model-control-mode=explicit", f"--http-workers={workers}")
    loaded = ("--load-model=graph", "--load-model=embedding")
    with ServerProcess(models, tmp_path / "log", *options, *loaded) as server:
        assert infer(server, "embedding", INPUT__0=np.array([[3]], np.int64))[0] == 200
        status, text = infer(server, "embedding", INPUT__0=np.array([[10_000_000]], np.int64))
        assert (status, "CUDA" in str(text)) == (500, True), text
        status = server.process.wait(STOP_LIMIT_S)
        server.kill()
        assert status == 1, server.log_text()
        assert "the device gpu:0 can run no more models" in server.log_text()
