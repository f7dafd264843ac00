"""Reasons for closing batches, limits of a latency target, and a full queue: in answers, statistics and metrics.

Source: docs/tuning.md, "Why was this batch closed?".
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from http.client import HTTPConnection

import pytest
import tritonclient.grpc

from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import GOLDEN_MODELS, good_document, is_good_answer
from tests.waiting import until

pytestmark = pytest.mark.shapes("front-ends")

# The models by the reason for which their first batch is closed, and how many requests that takes.
MODELS = {
    "idle": (1, "dynamic_batching { }"),
    "delay": (1, "dynamic_batching { max_queue_delay_microseconds: 50000 }"),
    "preferred": (2, "dynamic_batching { max_queue_delay_microseconds: 60000000 preferred_batch_size: 2 }"),
    "full": (3, "dynamic_batching { max_queue_delay_microseconds: 60000000 }"),
}
TARGET = 'dynamic_batching { } parameters { key: "TARGET_P99_MS" value { string_value: "12.5" } }'
INPUTS = "".join(f'input {{ name: "INPUT{n}" data_type: TYPE_INT32 dims: 16 }} ' for n in range(2))
# The first level has room for two requests, which wait until a request of the second one fills the batch.
LIMITED = (
    "dynamic_batching { max_queue_delay_microseconds: 60000000 priority_levels: 2 default_priority_level: 1 "
    "priority_queue_policy { key: 1 value { max_queue_size: 2 } } }"
)
OTHERS = {"target": TARGET, "limited": LIMITED}
LIMIT_S = 60.0
OUTPUTS = "".join(f'output {{ name: "OUTPUT{n}" data_type: TYPE_INT32 dims: 16 }} ' for n in range(2))


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("close")
    for name, batching in [*OTHERS.items(), *((name, batching) for name, (_, batching) in MODELS.items())]:
        shutil.copytree(GOLDEN_MODELS / "simple", folder / "m" / name)
        (folder / "m" / name / "config.pbtxt").write_text(
            f'backend: "onnxruntime" max_batch_size: 3 {INPUTS} {OUTPUTS} {batching} instance_group {{ count: 1 }}'
        )
    with ServerProcess(folder / "m", folder / "log", "--response-timing=true") as server:
        yield server


def body(seed: int = 0, **parameters: int) -> bytes:
    return json.dumps(good_document(seed) | {"parameters": {"timing": True, **parameters}}).encode()


def page(server: ServerProcess) -> list[str]:
    """The lines of the metrics."""
    return server.request("GET", "/metrics", port=server.metrics_port)[2].decode().splitlines()


def test_metrics_show_latency_target_delay_and_batch_size(server: ServerProcess) -> None:
    status, _, answer = server.request("POST", "/v2/models/target/infer", body())
    assert status == 200, answer
    lines = page(server)
    assert 'trident_batch_target_p99_seconds{model="target",version="1"} 0.0125' in lines
    assert 'trident_batch_delay_seconds{model="target",version="1"} 0' in lines
    assert 'trident_batch_size_limit{model="target",version="1"} 3' in lines
    assert not [line for line in lines if line.startswith('trident_batch_size_limit{model="full"')]


@pytest.mark.parametrize("reason", MODELS)
def test_close_reason_is_in_response_statistics_and_metrics(server: ServerProcess, reason: str) -> None:
    count, _ = MODELS[reason]
    with ThreadPoolExecutor(count) as pool:
        ask = partial(server.request, "POST", f"/v2/models/{reason}/infer")
        answers = list(pool.map(ask, map(body, range(count))))
    for seed, (status, headers, answer) in enumerate(answers):
        assert status == 200, answer
        assert is_good_answer(answer, seed)
        assert headers["Server-Timing"].endswith(f'batch;desc="{count}", close;desc="{reason}"')
        assert json.loads(answer)["parameters"]["timing_batch_close"] == reason
    (found,) = server.json("GET", f"/v2/models/{reason}/stats")["model_stats"]
    assert {name: times for name, times in found["batch_close_count"].items() if times} == {reason: 1}
    assert f'trident_batch_close_total{{model="{reason}",reason="{reason}",version="1"}} 1' in page(server)
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        (message,) = client.get_inference_statistics(reason).model_stats
    assert message.execution_count == 1


def test_a_full_queue_refuses_with_retry_after(server: ServerProcess) -> None:
    path = "/v2/models/limited/infer"
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(closing(HTTPConnection(HOST, server.http_port, timeout=LIMIT_S))) for _ in range(2)
        )
        for connection in (first, second):
            connection.request("POST", path, body())
        until(lambda: 'nv_inference_pending_request_count{model="limited",version="1"} 2' in page(server))
        status, headers, answer = server.request("POST", path, body())
        assert (status, headers["Retry-After"]) == (503, "1")
        assert json.loads(answer)["error"] == "[request id: <id_unknown>] Exceeds maximum queue size"
        assert server.request("POST", path, body(priority=2))[0] == 200
        assert [connection.getresponse().status for connection in (first, second)] == [200, 200]
    lines = page(server)
    assert 'nv_inference_request_failure{model="limited",reason="REJECTED",version="1"} 1' in lines
    route = 'method="POST",model="limited",route="/v2/models/<model>/infer",status="503"'
    assert [line for line in lines if line.startswith(f"trident_http_errors_total{{{route}}} ")]
