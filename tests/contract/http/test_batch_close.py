"""Why a batch was closed, and what a target sets: answers, statistics and metrics of a real server say it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import tritonclient.grpc

from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import GOLDEN_MODELS, good_document

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
OUTPUTS = "".join(f'output {{ name: "OUTPUT{n}" data_type: TYPE_INT32 dims: 16 }} ' for n in range(2))


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("close")
    for name, batching in [("target", TARGET), *((name, batching) for name, (_, batching) in MODELS.items())]:
        shutil.copytree(GOLDEN_MODELS / "simple", folder / "m" / name)
        (folder / "m" / name / "config.pbtxt").write_text(
            f'backend: "onnxruntime" max_batch_size: 3 {INPUTS} {OUTPUTS} {batching} instance_group {{ count: 1 }}'
        )
    with ServerProcess(folder / "m", folder / "log", "--response-timing=true") as server:
        yield server


def test_a_model_with_a_target_shows_what_its_batcher_sets(server: ServerProcess) -> None:
    status, _, answer = server.request("POST", "/v2/models/target/infer", json.dumps(good_document()).encode())
    assert status == 200, answer
    _, _, page = server.request("GET", "/metrics", port=server.metrics_port)
    lines = [line for line in page.decode().splitlines() if 'model="target"' in line]
    assert 'trident_batch_target_p99_seconds{model="target",version="1"} 0.0125' in lines
    assert 'trident_batch_delay_seconds{model="target",version="1"} 0' in lines
    assert 'trident_batch_size_limit{model="target",version="1"} 3' in lines
    assert 'trident_batch_size_limit{model="full",version="1"}' not in page.decode()


@pytest.mark.parametrize("reason", MODELS)
def test_an_answer_the_statistics_and_the_metrics_name_the_reason(server: ServerProcess, reason: str) -> None:
    count, _ = MODELS[reason]
    body = json.dumps(good_document() | {"parameters": {"timing": True}}).encode()
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(lambda _: server.request("POST", f"/v2/models/{reason}/infer", body), range(count)))
    for status, headers, answer in answers:
        assert status == 200, answer
        assert headers["Server-Timing"].endswith(f'batch;desc="{count}", close;desc="{reason}"')
        assert json.loads(answer)["parameters"]["timing_batch_close"] == reason
    (found,) = server.json("GET", f"/v2/models/{reason}/stats")["model_stats"]
    assert {name: times for name, times in found["batch_close_count"].items() if times} == {reason: 1}
    _, _, page = server.request("GET", "/metrics", port=server.metrics_port)
    counted = f'trident_batch_close_total{{model="{reason}",reason="{reason}",version="1"}} 1'
    assert counted in page.decode().splitlines()
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        (message,) = client.get_inference_statistics(reason).model_stats
    assert message.execution_count == 1
