"""Python models that never end an execution: who learns of it, and that an unload and a stop end nevertheless.

Source: docs/spec/python-backend.md sections 4.4 and 4.5.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.ensembles.ensemble_models import step, write_ensemble
from tests.contract.python.python_models import ADD_SUB, assert_adds, is_alive, pair, stubs_of, write_model
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import assert_still_serves, link_models
from tests.waiting import until

pytestmark = pytest.mark.slow

LOOP = """
def execute(self, requests):
    open(os.path.join(pb_utils.get_model_dir(), "begun"), "w").close()
    while True:
        pass
"""
ASK = """
def execute(self, requests):
    ask = pb_utils.InferenceRequest(
        model_name="{}", requested_output_names=["OUTPUT0", "OUTPUT1"], inputs=requests[0].inputs()
    )
    return [ask.exec() for _ in requests]
"""


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = link_models(tmp_path_factory.mktemp("models"), "simple")
    write_model(repository, "add_sub", ADD_SUB)
    write_model(repository, "loop", LOOP)
    write_model(repository, "itself", ASK.format("itself"))
    write_model(repository, "first", ASK.format("around_second"))
    for model in ("loop", "second"):
        inputs, outputs = ([(f"{side}{n}", "TYPE_INT32", [16]) for n in range(2)] for side in ("INPUT", "OUTPUT"))
        mapped = [{name: name for name, *_ in side} for side in (inputs, outputs)]
        write_ensemble(repository, f"around_{model}", inputs, outputs, [step(model, *mapped)])
    write_model(repository, "second", ASK.format("first"))
    write_model(repository, "asks_another", ASK.format("add_sub"))
    options = ("--model-control-mode=explicit", "--load-model=*", "--model-unload-timeout-secs=1")
    with ServerProcess(repository, tmp_path_factory.mktemp("log") / "log", *options) as running:
        yield running


def ask(server: ServerProcess, model: str) -> tuple[int, str]:
    status, _, body = server.request("POST", f"/v2/models/{model}/infer", json.dumps(pair()).encode())
    return status, json.loads(body).get("error", "")


@pytest.mark.parametrize("model", ["itself", "first", "second"])
def test_a_model_that_would_wait_for_itself_is_refused(server: ServerProcess, model: str) -> None:
    status, error = ask(server, model)
    assert status == 500
    assert "would never answer: instance" in error
    assert "instance_group.count" in error
    for seed in range(2):  # nothing is left of a wait that has ended
        assert_adds(server, "asks_another", seed=seed)


@pytest.mark.parametrize("model", ["loop", "around_loop"])
def test_an_unload_ends_what_does_not_end(server: ServerProcess, model: str) -> None:
    begun = server.repository / "loop" / "1" / "begun"
    begun.unlink(missing_ok=True)
    server.json("POST", f"/v2/repository/models/{model}/load")
    stub = stubs_of(server)["loop_0_0"]
    killed = (
        "The process of model instance 'loop_0_0' was killed, because its model is unloaded, and it did not end its "
        "executions within 1 s."
    )
    with ThreadPoolExecutor(2) as threads:
        runs = threads.submit(ask, server, model)
        until(begun.exists)
        waits = threads.submit(ask, server, "loop")
        until(lambda: pending(server, "loop") == 1)
        statistics = server.json("GET", "/v2/models/loop/stats")["model_stats"][0]
        assert (statistics["execution_count"], statistics["last_inference"] > 0) == (0, True)
        assert oldest_execution(server, "loop") > 0
        server.json("POST", "/v2/repository/models/loop/unload")
        status, error = runs.result(60)
        assert (status, killed in error) == (500, True)
        status, error = waits.result(60)
        # What holds the model leaves first, and the model may serve the next request until then.
        assert status == 503 or (status == 500 and model == "around_loop")
        assert "did not end its executions within 1 s" in error
    until(lambda: not is_alive(stub))
    until(lambda: state(server, "loop") == "UNAVAILABLE", server.log_text)
    assert_still_serves(server)


def value(server: ServerProcess, metric: str, model: str) -> float:
    page = server.request("GET", "/metrics", port=server.metrics_port)[2].decode()
    name = f'{metric}{{model="{model}",version="1"}}'
    return float(next(line for line in page.splitlines() if line.startswith(name)).rpartition(" ")[2])


def pending(server: ServerProcess, model: str) -> float:
    return value(server, "nv_inference_pending_request_count", model)


def oldest_execution(server: ServerProcess, model: str) -> float:
    return value(server, "trident_oldest_execution_seconds", model)


def state(server: ServerProcess, model: str) -> str:
    (entry,) = [each for each in server.json("POST", "/v2/repository/index") if each["name"] == model]
    return str(entry["state"])
