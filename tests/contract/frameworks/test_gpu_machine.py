"""A server on a machine whose GPUs the CPU plays: plans are served; the GPUs fail, are too old, too few or several.

Source: docs/gpu.md; docs/troubleshooting.md; docs/spec/framework-backends.md section 6.5.
"""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.contract.frameworks.gpu_machine import MIG, UUIDS, GpuMachine
from tests.contract.servers.server import STOP_LIMIT_S, ServerProcess
from tests.unit import onnx_models
from tests.unit.core.backends.onnxruntime.cpu_as_gpu import LOST, NO_MEMORY
from tests.unit.core.backends.tensorrt.plans import add_sub, write_plan
from tests.unit.onnx_serving import add_sub_config
from tests.waiting import until

pytestmark = pytest.mark.slow

ILLEGAL_ADDRESS, OUT_OF_MEMORY = 700, 2
LOST_ADDRESS = {"failures": {"cuEventSynchronize": ILLEGAL_ADDRESS}}
TOO_OLD = NO_MEMORY.replace("2: out of memory", "35: CUDA driver version is insufficient for CUDA runtime version")
LARGE = "model 'graph' has not enough memory on gpu:0 for a batch of 8: lower max_batch_size"
ENDS = "error: creating server: Internal - the device gpu:0 can run no more models until the process is replaced"
EXPLICIT = ("--model-control-mode=explicit", "--exit-on-error=false")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """The models `graph`, in ONNX, and `plan`, of TensorRT."""
    models = tmp_path / "models"
    onnx_models.write_version(onnx_models.add_sub("FP32"), models, "graph")
    (models / "graph" / "config.pbtxt").write_text(add_sub_config("FP32") + "instance_group { kind: KIND_GPU }\n")
    write_plan(models / "plan" / "1", add_sub())
    return models


def server_of(models: Path, machine: GpuMachine, *options: str, ready: bool = True) -> ServerProcess:
    log = models.parent / "log"
    return ServerProcess(models, log, "--shutdown-grace-secs=0", *options, ready=ready, environment=machine.environment)


def infer(server: ServerProcess, model: str, rows: int = 1) -> tuple[int, str]:
    tensor = {"datatype": "FP32", "shape": [rows, 16], "data": [1.0] * rows * 16}
    body = json.dumps({"inputs": [{"name": f"INPUT{number}", **tensor} for number in range(2)]}).encode()
    status, _, answer = server.request("POST", f"/v2/models/{model}/infer", body)
    return status, answer.decode()


def load(server: ServerProcess, model: str) -> tuple[int, str]:
    status, _, answer = server.request("POST", f"/v2/repository/models/{model}/load", b"{}")
    return status, answer.decode()


def ended(server: ServerProcess) -> tuple[int, str]:
    """The exit status of a server that ends by itself, and its last line."""
    status = server.process.wait(STOP_LIMIT_S)
    server.kill()
    return status, server.log_text().splitlines()[-1]


@pytest.mark.parametrize(
    ("workers", "model", "fault", "text"),
    [
        (0, "graph", {"at_run": LOST}, "CUDA failure 700"),
        (0, "plan", LOST_ADDRESS, "cuEventSynchronize failed with CUDA error 700"),
        (2, "graph", {"at_run": LOST}, "CUDA failure 700"),
    ],
    ids=["session", "plan", "front-ends"],
)
def test_gpu_that_is_lost_in_a_request_ends_the_server(
    models: Path, tmp_path: Path, workers: int, model: str, fault: dict[str, Any], text: str
) -> None:
    machine = GpuMachine(tmp_path)
    with server_of(models, machine, f"--http-workers={workers}") as server:
        assert infer(server, model)[0] == 200
        machine.change(**fault)
        status, answer = infer(server, model)
        assert (status, text in answer) == (500, True), answer
        status, line = ended(server)
        assert (status, ENDS in line) == (1, True), line


def test_engine_with_a_lost_gpu_is_replaced_while_the_other_serves(models: Path, tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path, devices=2)
    with server_of(models, machine, "--http-workers=2", "--engines=2") as server:
        machine.change(at_run=LOST)
        assert infer(server, "graph")[0] == 500
        machine.change(at_run="")
        # Until the front ends know, a request may still meet the engine that is ending.
        statuses: list[int] = []

        def is_answered() -> bool:
            statuses.append(infer(server, "graph")[0])
            return statuses[-1] == 200

        until(is_answered, lambda: f"{statuses}")
        assert set(statuses[:-1]) <= {503}
        lost = "the device gpu:0 can run no more models until the process is replaced: the other engines serve on"
        until(lambda: lost in server.log_text(), server.log_text)
        until(lambda: server.log_text().count("successfully loaded 'graph'") == 3, server.log_text)


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        ("graph", {"at_session": LOST}),
        ("graph", {"at_run": LOST}),
        ("plan", {"failures": {"cuStreamCreateWithPriority": ILLEGAL_ADDRESS}}),
    ],
    ids=["session", "warm-up", "another-instance"],
)
def test_gpu_that_is_lost_during_a_load_ends_the_server(
    models: Path, tmp_path: Path, model: str, fault: dict[str, Any]
) -> None:
    machine = GpuMachine(tmp_path)
    with server_of(models, machine, *EXPLICIT) as server:
        if model == "plan":
            assert load(server, model) == (200, "")
            (models / model / "config.pbtxt").write_text("instance_group { kind: KIND_GPU count: 2 }\n")
        machine.change(**fault)
        with suppress(OSError, http.client.HTTPException):  # it may end before it has answered
            status, answer = load(server, model)
            assert (status in (400, 500), "700" in answer) == (True, True), answer
        status, line = ended(server)
        assert (status, ENDS in line) == (1, True), line


def test_server_survives_out_of_memory_at_each_step(models: Path, tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path)
    healthy: dict[str, Any] = {"failures": {}, "at_session": "", "at_run": "", "from_rows": 1}
    with server_of(models, machine, *EXPLICIT) as server:
        # The context of the device, an instance's stream, a session.
        for model, fault, text in (
            ("plan", {"failures": {"cuDevicePrimaryCtxRetain": OUT_OF_MEMORY}}, "unable to create TensorRT engine"),
            ("plan", {"failures": {"cuStreamCreateWithPriority": OUT_OF_MEMORY}}, "unable to create TensorRT context"),
            ("graph", {"at_session": NO_MEMORY}, "CUDA failure 2: out of memory"),
        ):
            machine.change(**healthy | fault)
            status, answer = load(server, model)
            assert (status, text in answer) == (503, True), answer
        # A run of the largest size before the model is ready, and pinned memory, are no reason to refuse it.
        machine.change(**healthy | {"at_run": NO_MEMORY, "from_rows": 8, "failures": {"cuMemHostRegister_v2": 2}})
        assert load(server, "graph") == (200, "")
        assert LARGE in server.log_text()
        assert [infer(server, "graph", rows)[0] for rows in (1, 8, 7)] == [200, 503, 200]
        machine.change(**healthy)
        assert load(server, "plan") == (200, "")
        machine.change(failures={"cuMemAlloc_v2": OUT_OF_MEMORY})
        status, answer = infer(server, "plan", 8)
        assert (status, "cuMemAlloc_v2 failed with CUDA error 2" in answer) == (503, True), answer
        machine.change(**healthy)
        assert [infer(server, model, 8)[0] for model in ("plan", "graph")] == [200, 200]


@pytest.mark.parametrize(
    ("state", "visible", "line"),
    [
        (
            {"driver": "535.183.01", "cuda": 12020},
            None,
            "driver 535.183.01 is too old for CUDA 13: it supports CUDA 12.2, and 580.65.06 or later is needed",
        ),
        # Without the management library only a session finds out.
        ({"nvml": False, "at_session": TOO_OLD}, None, "use a machine with a newer driver"),
        ({"devices": 0}, None, "has kind KIND_GPU but no GPUs are available"),
        ({}, "MIG-gone", "CUDA_VISIBLE_DEVICES is 'MIG-gone', by which CUDA finds no GPU"),
    ],
    ids=["old-driver", "old-driver-without-nvml", "no-device", "unknown-mig"],
)
def test_missing_gpu_aborts_startup(
    models: Path, tmp_path: Path, state: dict[str, Any], visible: str | None, line: str
) -> None:
    machine = GpuMachine(tmp_path, **state)
    if visible is not None:
        machine.environment["CUDA_VISIBLE_DEVICES"] = visible
    with server_of(models, machine, ready=False) as server:
        status, last = ended(server)
    assert (status, "failed to load all models" in last) == (1, True), last
    assert line in server.log_text()


@pytest.mark.parametrize(
    ("state", "visible", "devices", "labels"),
    [
        ({"devices": 2}, None, ["gpu:0", "gpu:1"], UUIDS),
        ({"devices": 2, "nvml": False}, None, ["gpu:0", "gpu:1"], ()),
        ({"devices": 2}, UUIDS[1], ["gpu:0"], UUIDS[1:]),
        ({"devices": 2}, MIG, ["gpu:0"], (MIG,)),
    ],
    ids=["two", "two-without-nvml", "second-by-uuid", "mig"],
)
def test_models_run_on_visible_gpus(
    models: Path,
    tmp_path: Path,
    state: dict[str, Any],
    visible: str | None,
    devices: list[str],
    labels: tuple[str, ...],
) -> None:
    machine = GpuMachine(tmp_path, **state)
    if visible is not None:
        machine.environment["CUDA_VISIBLE_DEVICES"] = visible
    options = (*EXPLICIT, "--load-model=graph")
    with server_of(models, machine, *options) as server:
        assert infer(server, "graph")[0] == 200
        until(lambda: f"| {', '.join(devices)} " in server.log_text(), server.log_text)
        page = server.request("GET", "/metrics", port=server.metrics_port)[2].decode()
        used = 'nv_gpu_memory_used_bytes{gpu_uuid="%s"}'
        assert [uuid for uuid in (*UUIDS, MIG) if used % uuid in page] == list(labels)
        assert ("no GPU metrics: libnvidia-ml.so.1" in server.log_text()) is (state.get("nvml") is False)


# --- plans

# That of the first allocation.
HANDLE = b"\x01" + bytes(62) + b"\xff"
CLIENTS: dict[str, Any] = {"http": tritonclient.http, "grpc": tritonclient.grpc}


@pytest.fixture(scope="module")
def plans(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("plans")
    write_plan(folder / "models" / "sums" / "1", add_sub())
    options = ("--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=true")
    with server_of(folder / "models", GpuMachine(folder), *options) as running:
        yield running


@pytest.mark.parametrize("door", CLIENTS)
def test_plan_is_completed_served_and_counted(plans: ServerProcess, door: str) -> None:
    library = CLIENTS[door]
    address = plans.address if door == "http" else f"{plans.address.rpartition(':')[0]}:{plans.grpc_port}"
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
    (statistics,) = plans.json("GET", "/v2/models/sums/stats")["model_stats"]
    assert statistics["inference_count"] >= 2
    assert statistics["inference_stats"]["compute_infer"]["ns"] > 0


def test_region_on_the_gpu_is_written_and_read_by_the_model(plans: ServerProcess) -> None:
    library = tritonclient.http
    with library.InferenceServerClient(plans.address) as client:
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
