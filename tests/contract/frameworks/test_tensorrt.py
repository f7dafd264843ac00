"""Plans, served over HTTP and gRPC by a server whose driver and TensorRT are on memory of the CPU.

Source: docs/spec/framework-backends.md section 6.5.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.contract.frameworks.gpu_machine import GpuMachine
from tests.contract.servers.server import ServerProcess
from tests.unit.core.backends.tensorrt.plans import add_sub, write_plan

pytestmark = pytest.mark.slow

# That of the first allocation.
HANDLE = b"\x01" + bytes(62) + b"\xff"
CLIENTS: dict[str, Any] = {"http": tritonclient.http, "grpc": tritonclient.grpc}


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("plans")
    write_plan(folder / "models" / "sums" / "1", add_sub())
    machine = GpuMachine(folder)
    options = ["--shutdown-grace-secs=0", "--model-control-mode=explicit", "--load-model=*"]
    options.append("--allow-client-shm=true")
    log = folder / "log"
    with ServerProcess(folder / "models", log, *options, environment=machine.environment) as running:
        yield running


@pytest.mark.parametrize("door", CLIENTS)
def test_a_plan_is_completed_served_and_counted(server: ServerProcess, door: str) -> None:
    library = CLIENTS[door]
    address = server.address if door == "http" else f"{server.address.rpartition(':')[0]}:{server.grpc_port}"
    with library.InferenceServerClient(address) as client:
        config = client.get_model_config("sums", **({"as_json": True} if door == "grpc" else {}))
        config = config.get("config", config)
        assert (config["platform"], config["max_batch_size"]) == ("tensorrt_plan", 8)
        given = np.arange(32, dtype=np.float32).reshape(2, 16)
        inputs = [library.InferInput(f"INPUT{number}", given.shape, "FP32") for number in range(2)]
        for tensor in inputs:
            tensor.set_data_from_numpy(given)
        answer = client.infer("sums", inputs)
        np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), given * 2)
        np.testing.assert_array_equal(answer.as_numpy("OUTPUT1"), given * 0)
        # Reloaded, it serves again.
        client.load_model("sums")
        np.testing.assert_array_equal(client.infer("sums", inputs).as_numpy("OUTPUT0"), given * 2)
    (statistics,) = server.json("GET", "/v2/models/sums/stats")["model_stats"]
    assert statistics["inference_count"] >= 2
    assert statistics["inference_stats"]["compute_infer"]["ns"] > 0


def test_a_region_on_the_gpu_is_written_and_read_by_the_model(server: ServerProcess) -> None:
    library = tritonclient.http
    with library.InferenceServerClient(server.address) as client:
        client.register_cuda_shared_memory("r", base64.b64encode(HANDLE), 0, 1024)
        try:
            given = np.arange(16, dtype=np.float32).reshape(1, 16)
            inputs = [library.InferInput(f"INPUT{number}", given.shape, "FP32") for number in range(2)]
            for tensor in inputs:
                tensor.set_data_from_numpy(given)
            placed = library.InferRequestedOutput("OUTPUT0")
            placed.set_shared_memory("r", given.nbytes, 256)
            client.infer("sums", inputs, outputs=[placed])
            # What the model has written is what it reads there.
            inputs[0].set_shared_memory("r", given.nbytes, 256)
            np.testing.assert_array_equal(client.infer("sums", inputs).as_numpy("OUTPUT0"), given * 3)
        finally:
            client.unregister_cuda_shared_memory("r")
