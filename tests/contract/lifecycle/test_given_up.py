"""Requests that are given up: each way to do so, at each place where the request may be, over both protocols.

Source: docs/http.md, "Requests that are given up".
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from tests.contract.python.python_models import write_model
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.shapes("one-process", "front-ends")]

TENSORS = """
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
QUEUE = """
instance_group [ { kind: KIND_CPU } ]
dynamic_batching { preferred_batch_size: [ 1 ] default_queue_policy {
  default_timeout_microseconds: 600000000 allow_timeout_override: true max_queue_size: 100 } }
"""
# It says that it runs, and waits for its caller to leave, or for the file that ends it.
METHODS = """
def execute(self, requests):
    assert len(requests) == 1
    open("{folder}/runs", "w").close()
    while not os.path.exists("{folder}/end") and not requests[0].is_cancelled():
        time.sleep(0.01)
    os.remove("{folder}/runs")
    if requests[0].is_cancelled():
        error = pb_utils.TritonError("the caller left", pb_utils.TritonError.CANCELLED)
        return [pb_utils.InferenceResponse(error=error)]
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", requests[0].inputs()[0].as_numpy())])]
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
ensemble_scheduling { step [ { model_name: "work" model_version: -1
  input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } ] }
"""
SHORT_S = 2.0


class Bench:
    """A server with the model `work`, one request at a time, and `pipe`, an ensemble of it."""

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self.server = server
        self.runs, self.end = folder / "runs", folder / "end"
        self.client: Any = triton.InferenceServerClient(f"{HOST}:{server.grpc_port}")

    def count(self, model: str, cause: str) -> int:
        """How many requests of the model were given up for that cause."""
        return self._metric(f'trident_inference_cancellations_total{{cause="{cause}",model="{model}"')

    def failures(self, model: str, reason: str) -> int:
        return self._metric(f'nv_inference_request_failure{{model="{model}",reason="{reason}"')

    def _metric(self, series: str) -> int:
        page = self.server.request("GET", "/metrics", port=self.server.metrics_port)[2].decode()
        found = re.search(rf"^{re.escape(series)}[^ ]* (\d+)$", page, re.MULTILINE)
        assert found is not None, page
        return int(found[1])

    def queued(self) -> int:
        return self._metric('nv_inference_pending_request_count{model="work"')

    def begin(self, model: str, on_answer: Any = lambda result, error: None, **options: Any) -> Any:
        tensor = triton.InferInput("IN", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.ones((1, 1), np.int32))
        return self.client.async_infer(model, [tensor], on_answer, **options)

    # --- the ways to give a request up; each returns what to call when the request is where it should be

    def leave_over_http(self, model: str) -> Callable[[], object]:
        connection = http.client.HTTPConnection(HOST, self.server.http_port)
        connection.request("POST", f"/v2/models/{model}/infer", json.dumps(BODY).encode())
        return connection.close

    def cancel_over_grpc(self, model: str) -> Callable[[], object]:
        call: Any = self.begin(model)
        return lambda: call.cancel()

    def miss_the_deadline(self, model: str) -> Callable[[], object]:
        ended = threading.Event()
        self.begin(model, lambda result, error: ended.set(), client_timeout=SHORT_S)
        return ended.wait

    def wait_for_the_timeout(self, model: str) -> Callable[[], object]:
        body = {**BODY, "parameters": {"timeout": int(SHORT_S * 1_000_000)}}
        path = f"/v2/models/{model}/infer"
        request = threading.Thread(target=self.server.request, args=("POST", path, json.dumps(body).encode()))
        request.start()
        expires = time.monotonic() + SHORT_S
        return lambda: until(lambda: time.monotonic() > expires)


BODY = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [1]}]}
WAYS: dict[str, tuple[Callable[[Bench, str], Callable[[], object]], str]] = {
    "http": (Bench.leave_over_http, "client"),
    "grpc": (Bench.cancel_over_grpc, "client"),
    "deadline": (Bench.miss_the_deadline, "deadline"),
    "timeout": (Bench.wait_for_the_timeout, "queue_timeout"),
}


@pytest.fixture(scope="module")
def bench(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("given-up")
    write_model(folder / "models", "work", METHODS.replace("{folder}", str(folder)), TENSORS + QUEUE)
    (folder / "models" / "pipe" / "1").mkdir(parents=True)
    (folder / "models" / "pipe" / "config.pbtxt").write_text(ENSEMBLE + TENSORS)
    with ServerProcess(folder / "models", folder / "log", "--shutdown-grace-secs=0") as server:
        made = Bench(server, folder)
        yield made
        made.client.close()
        assert "Traceback" not in server.log_text()


@pytest.mark.parametrize(
    ("way", "model"), [("http", "pipe"), ("grpc", "work"), ("deadline", "work"), ("timeout", "work")]
)
def test_abandoned_queued_request_is_not_executed(way: str, model: str, bench: Bench) -> None:
    give_up, cause = WAYS[way]
    reason = "REJECTED" if way == "timeout" else "CANCELED"
    counts = {name: bench.count(name, cause) for name in {"work", model}}
    failures = bench.failures("work", reason)
    bench.end.unlink(missing_ok=True)
    bench.begin("work")
    until(bench.runs.exists)
    leave = give_up(bench, model)
    # One that gives itself up may have done so before anybody saw it in the queue.
    until(lambda: bench.queued() == 1 or bench.count("work", cause) > counts["work"])
    leave()
    for name, before in counts.items():
        until(lambda name=name, before=before: bench.count(name, cause) == before + 1)
    assert bench.failures("work", reason) == failures + 1
    assert bench.runs.exists()
    bench.end.touch()
    until(lambda: not bench.runs.exists())


@pytest.mark.parametrize(("way", "model"), [("http", "work"), ("grpc", "pipe"), ("deadline", "work")])
def test_running_model_sees_the_cancellation(way: str, model: str, bench: Bench) -> None:
    give_up, cause = WAYS[way]
    counts = {name: bench.count(name, cause) for name in {"work", model}}
    bench.end.unlink(missing_ok=True)
    leave = give_up(bench, model)
    until(lambda: bench.runs.exists() or bench.count("work", cause) > counts["work"])
    leave()
    for name, before in counts.items():
        until(lambda name=name, before=before: bench.count(name, cause) == before + 1)
    until(lambda: not bench.runs.exists())
