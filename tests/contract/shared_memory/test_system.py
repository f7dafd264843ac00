"""System shared memory with NVIDIA's clients, over both protocols and in both shapes of the server.

Source: docs/spec/shared-memory.md sections 1 to 6 and 8.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.contract.shared_memory.client_regions import Speaker, memory, speaker
from tests.unit.onnx_models import identity, waiting, write_version
from tests.waiting import until
from trident.core.inference.tensors import Array

pytestmark = [pytest.mark.slow, pytest.mark.shapes("one-process", "front-ends")]

PAGE = 4096
ROUNDS = 100_000
FIRST = np.arange(16, dtype=np.int32).reshape(1, 16)
SECOND = np.full((1, 16), 3, np.int32)
SIZE = FIRST.nbytes
STRINGS = np.array([[b"", b"a\0b", "größer 漢".encode()], [b"x" * 3000, b"\0", b"1"]], np.object_)


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("shared_memory")
    repository = link_models(folder / "models", "simple")
    write_version(identity("FP32"), repository, "same_FP32")
    write_version(identity("BYTES"), repository, "same_BYTES")
    write_version(waiting(), repository, "waiting", "instance_group [{ count: 1, kind: KIND_CPU }]")
    # With front ends, larger tensors are used where they lie.
    options = ("--allow-client-shm=true", f"--client-shm-map-bytes={0 if http_workers == '0' else 1000}")
    with ServerProcess(repository, folder / "log", "--shutdown-grace-secs=0", *options) as running:
        yield running
        assert "Traceback" not in running.log_text()


@pytest.fixture(params=["http", "grpc"])
def speaks(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Speaker]:
    with speaker(request.param, server) as found:
        yield found
        found.client.unregister_system_shared_memory()
        assert found.names() == []


def simple_inputs(speaks: Speaker, region: str = "in") -> list[object]:
    """Both inputs of `simple` in one region, one after the other."""
    return [
        speaks.shared_input("INPUT0", [1, 16], "INT32", region, SIZE),
        speaks.shared_input("INPUT1", [1, 16], "INT32", region, SIZE, SIZE),
    ]


def test_inputs_and_outputs_use_the_offsets_of_their_regions(speaks: Speaker) -> None:
    client = speaks.client
    with memory(2 * SIZE) as inputs, memory(PAGE + 3 * SIZE) as outputs:
        inputs.put(FIRST)
        inputs.put(SECOND, SIZE)
        client.register_system_shared_memory("in", inputs.key, 2 * SIZE)
        client.register_system_shared_memory("out", outputs.key, 3 * SIZE, offset=PAGE)
        wanted = [
            speaks.shared_output("OUTPUT0", "out", 2 * SIZE, SIZE),
            speaks.shared_output("OUTPUT1", "out", SIZE),
        ]
        result = client.infer("simple", simple_inputs(speaks), outputs=wanted, request_id="one")
        assert outputs.array(np.int32, [1, 16], PAGE + SIZE).tolist() == (FIRST + SECOND).tolist()
        assert outputs.array(np.int32, [1, 16], PAGE).tolist() == (FIRST - SECOND).tolist()
        assert not outputs.array(np.int32, [PAGE // 4]).any()
        response = result.get_response() if speaks.protocol == "http" else result.get_response(as_json=True)
        described = [{"name": name, "datatype": "INT32"} for name in ("OUTPUT0", "OUTPUT1")]
        assert [{key: each[key] for key in ("name", "datatype")} for each in response["outputs"]] == described
        assert all(set(each) == {"name", "datatype", "shape"} for each in response["outputs"])


@pytest.mark.parametrize(
    ("model", "datatype", "values"),
    [("same_BYTES", "BYTES", STRINGS), ("same_FP32", "FP32", np.arange(2_000_000, dtype=np.float32).reshape(2, -1))],
    ids=["strings", "large"],
)
def test_one_region_may_hold_input_and_output(speaks: Speaker, model: str, datatype: str, values: Array) -> None:
    with memory(1 << 24) as both:
        size = both.put(values)
        speaks.client.register_system_shared_memory("both", both.key, 1 << 24)
        given = speaks.shared_input("INPUT0", list(values.shape), datatype, "both", size)
        speaks.client.infer(model, [given], outputs=[speaks.shared_output("OUTPUT0", "both", size, 1 << 23)])
        answer = both.array(values.dtype, list(values.shape), 1 << 23)
        assert answer.tolist() == values.tolist()
        assert both.array(np.uint8, [size]).tobytes() == both.array(np.uint8, [size], 1 << 23).tobytes()


def test_a_region_is_refused_with_the_reason(speaks: Speaker) -> None:
    client = speaks.client
    text = "Unable to open shared memory region: '/../../etc/passwd'"
    assert text in speaks.refusal(client.register_system_shared_memory, "r", "/../../etc/passwd", 1)
    text = "failed to register CUDA shared memory region: 'r', GPUs not supported"
    assert text in speaks.refusal(client.register_cuda_shared_memory, "r", b64encode(bytes(64)), 0, 64)
    text = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"
    assert text in speaks.refusal(client.register_cuda_shared_memory, "r", b64encode(bytes(63)), 0, 64)


def test_range_outside_its_region_is_refused(speaks: Speaker) -> None:
    client = speaks.client
    with memory(256) as object_:
        client.register_system_shared_memory("in", object_.key, 128)
        second = speaks.input("INPUT1", SECOND, "INT32")
        cases = [
            (SIZE, 128, "Invalid offset for shared memory region: 'in'"),
            (129, 0, "Invalid offset + byte size for shared memory region: 'in'"),
            (65, 64, "Invalid offset + byte size for shared memory region: 'in'"),
            (128, 0, "input byte size mismatch for input 'INPUT0' for model 'simple'. Expected 64, got 128"),
            (60, 0, "input byte size mismatch for input 'INPUT0' for model 'simple'. Expected 64, got 60"),
        ]
        if speaks.protocol == "http":
            overflow = "Integer overflow detected: byte_size (18446744073709551615) + offset (64) exceeds maximum value"
            cases.append((2**64 - 1, 64, overflow))
        for size, offset, text in cases:
            given = speaks.shared_input("INPUT0", [1, 16], "INT32", "in", size, offset)
            assert text in speaks.refusal(client.infer, "simple", [given, second])
        first = speaks.input("INPUT0", FIRST, "INT32")
        for size, offset, text in cases[:3]:
            wanted = speaks.shared_output("OUTPUT0", "in", size, offset)
            assert text in speaks.refusal(client.infer, "simple", [first, second], outputs=[wanted])
        wanted = speaks.shared_output("OUTPUT0", "in", 60)
        assert (
            "shared memory size specified with the request for output 'OUTPUT0' (60 bytes) should be at least 64 bytes "
            "to hold the results"
        ) in speaks.refusal(client.infer, "simple", [first, second], outputs=[wanted])


def test_unregistered_region_is_removed_after_its_last_request(speaks: Speaker, server: ServerProcess) -> None:
    with memory(PAGE) as numbers:
        numbers.put(np.array([ROUNDS], np.int64))
        speaks.client.register_system_shared_memory("r", numbers.key, PAGE)
        with ThreadPoolExecutor(2) as pool, speaker(speaks.protocol, server) as other:
            rounds = other.shared_input("ROUNDS", [1], "INT64", "r", 8)
            running = [pool.submit(other.client.infer, "waiting", [rounds]) for _ in range(2)]
            # The model has one instance: when a request waits for it, another one runs.
            until(
                lambda: server.metric("nv_inference_pending_request_count", 'model="waiting"') == 1,
                "no request was queued",
            )
            speaks.client.unregister_system_shared_memory("r")
            assert speaks.names() == ["r"]
            assert "already in manager" in speaks.refusal(
                speaks.client.register_system_shared_memory, "r", numbers.key, PAGE
            )
            assert [each.result().as_numpy("COUNT").tolist() for each in running] == 2 * [[ROUNDS]]
            assert speaks.names() == []
