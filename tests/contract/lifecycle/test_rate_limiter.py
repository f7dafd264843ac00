"""The rate limiter: models that share a resource never run at the same time, and none of them starves.

Each execution answers when it began and ended, on the clock that all processes of a machine share.
Source: docs/spec/schedulers.md section 3.6.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.contract.python.python_models import stubs_of, write_model
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.waiting import until

pytestmark = pytest.mark.slow

SPANS = """
def execute(self, requests):
    began = time.monotonic_ns()
    ends = [pb_utils.get_input_tensor_by_name(request, "PAUSE_MS").as_numpy().max() for request in requests]
    if max(ends) < 0:
        os._exit(1)
    time.sleep(max(ends) / 1000)
    tensors = [pb_utils.Tensor("SPAN", np.array([[began, time.monotonic_ns()]], np.int64)) for _ in requests]
    return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]
"""
CONFIG = """
input [ {{ name: "PAUSE_MS" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "SPAN" data_type: TYPE_INT64 dims: [ 2 ] }} ]
instance_group [ {{ kind: KIND_CPU count: {count} rate_limiter {{ {limiter} }} }} ]
{more}
"""
ONE_COPY = 'resources [ { name: "R1" count: 1 } ]'
# Asks the model that a request names, and answers as that does or with its error.
ASKS = """
def execute(self, requests):
    return [self.asked(request) for request in requests]

def asked(self, request):
    import json
    pause = pb_utils.get_input_tensor_by_name(request, "PAUSE_MS")
    model = json.loads(request.parameters())["asked"]
    return pb_utils.InferenceRequest(model_name=model, inputs=[pause], requested_output_names=["SPAN"]).exec()
"""
BEHIND = """
platform: "ensemble"
max_batch_size: 1
input [ { name: "PAUSE_MS" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "SPAN" data_type: TYPE_INT64 dims: [ 2 ] } ]
ensemble_scheduling { step [ { model_name: "often" model_version: -1
  input_map { key: "PAUSE_MS" value: "PAUSE_MS" } output_map { key: "SPAN" value: "SPAN" } } ] }
"""


class Span(NamedTuple):
    began: int
    ended: int


def limited(repository: Path, name: str, limiter: str = ONE_COPY, count: int = 1, more: str = "") -> Path:
    """A model of which each execution is one request."""
    return write_model(repository, name, SPANS, CONFIG.format(count=count, limiter=limiter, more=more), 1)


@pytest.fixture(scope="module")
def running(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("limited")
    repository = link_models(folder / "models", "simple")
    limited(repository, "often")
    limited(repository, "seldom", ONE_COPY + " priority: 4", count=2)
    write_model(repository, "asks", ASKS, CONFIG.format(count=1, limiter=ONE_COPY, more=""), 1)
    write_model(repository, "asks_free", ASKS, CONFIG.format(count=1, limiter="", more=""), 1)
    limited(repository, "pair", 'resources [ { name: "r3" global: true count: 1 } ]', count=3)
    (repository / "behind" / "1").mkdir(parents=True)
    (repository / "behind" / "config.pbtxt").write_text(BEHIND)
    options = ["--rate-limit=execution_count", "--rate-limit-resource=R3:2"]
    models = [f"--load-model={name}" for name in ("simple", "often", "seldom", "pair", "behind", "asks", "asks_free")]
    options += ["--model-control-mode=explicit", *models, "--shutdown-grace-secs=0"]
    with ServerProcess(repository, folder / "log", *options) as server:
        yield server


def infer(server: ServerProcess, model: str, pause_ms: int = 2, **parameters: str) -> tuple[int, Any]:
    inputs = [{"name": "PAUSE_MS", "datatype": "INT32", "shape": [1, 1], "data": [pause_ms]}]
    body = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    status, _, answer = server.request("POST", f"/v2/models/{model}/infer", body)
    return status, json.loads(answer)


def span(server: ServerProcess, model: str, pause_ms: int = 2) -> Span:
    status, answer = infer(server, model, pause_ms)
    assert status == 200, answer
    return Span(*answer["outputs"][0]["data"])


def test_executions_sharing_a_resource_do_not_overlap_or_starve(running: ServerProcess) -> None:
    """Six clients of one model and six of the other, which may use its two instances only one at a time."""
    stop = threading.Event()
    spans: dict[str, list[Span]] = {"often": [], "seldom": [], "behind": []}

    def client(model: str) -> None:
        while not stop.is_set():
            spans[model].append(span(running, model))

    with ThreadPoolExecutor(14) as clients:
        calls = [clients.submit(client, model) for model in ["often", "seldom"] * 6 + ["behind"] * 2]
        until(lambda: len(spans["seldom"]) >= 40 or any(call.done() for call in calls))
        stop.set()
        for call in calls:
            call.result()
    ordered = sorted(each for of_model in spans.values() for each in of_model)
    assert all(one.ended <= other.began for one, other in pairwise(ordered))
    # The ensemble's requests are executions of its step. Each of the two instances gets a quarter of its turns.
    first, last = min(spans["seldom"]), max(spans["seldom"])
    beside = [each for model in ("often", "behind") for each in spans[model] if first < each < last]
    assert len(beside) > len(spans["seldom"])
    assert spans["behind"]


def test_resources_of_a_killed_process_are_released(running: ServerProcess) -> None:
    stub = stubs_of(running)["often_0_0"]
    with ThreadPoolExecutor(2) as clients:
        dying = clients.submit(infer, running, "often", 20_000)
        until(lambda: held(running, "r1", "0") == 1)
        waiting = clients.submit(span, running, "seldom")
        os.kill(stub, signal.SIGKILL)
        status, answer = dying.result()
        assert (status, "is not healthy" in answer["error"]) == (500, True), answer
        waiting.result()
    until(lambda: held(running, "r1", "0") == 0)
    until(lambda: infer(running, "often")[0] == 200)


@pytest.mark.parametrize("asked", ["often", "behind", "asks"])
def test_waiting_for_an_own_resource_is_refused(running: ServerProcess, asked: str) -> None:
    """`asks` and `often` need the one copy of R1, and so does the step of `behind`."""
    status, answer = infer(running, "asks", asked=asked)
    text = f"model '{asked}' needs the resource 'r1' of the rate limiter, which instance 'asks_0_0' holds"
    assert (status, text in answer["error"]) == (500, True), answer
    for asker, asks in (("asks", "pair"), ("asks_free", asked)):  # another resource; none
        status, answer = infer(running, asker, asked=asks if asks != "asks" else "often")
        assert status == 200, answer


def held(server: ServerProcess, resource: str, device: str) -> int:
    page = server.request("GET", "/metrics", port=server.metrics_port)[2].decode()
    labels = f'{{device="{device}",resource="{resource}"}}'
    (line,) = [line for line in page.splitlines() if line.startswith(f"trident_resource_held{labels}")]
    return int(float(line.split()[-1]))
