"""Python models that die or never end: restarts, unloads, and what clients, readiness, metrics and the log say.

Source: docs/spec/python-backend.md sections 4.4, 4.5 and 4.7.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.ensembles.ensemble_models import step, write_ensemble
from tests.contract.lifecycle.changing_models import state
from tests.contract.python.python_models import (
    INT32_PAIR,
    assert_adds,
    children_of,
    is_alive,
    pair,
    stubs_of,
    write_model,
)
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import assert_still_serves, link_models
from tests.waiting import until

pytestmark = pytest.mark.slow

# What a first number does to the process.
DYING = """
def execute(self, requests):
    responses = []
    for request in requests:
        a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        first = int(a.flat[0])
        if first == 101:
            os._exit(4)
        if first == 102:
            import ctypes
            ctypes.string_at(0)
        if first == 103:
            while True:
                pass
        if first == 104:
            time.sleep(1000)
        tensors = [pb_utils.Tensor("OUTPUT0", a + 3), pb_utils.Tensor("OUTPUT1", a - 3)]
        responses.append(pb_utils.InferenceResponse(tensors))
    return responses
"""
LIMITED = INT32_PAIR + 'parameters { key: "EXECUTION_LIMIT_SECONDS" value { string_value: "3" } }'
DIES_AT_START = """
def initialize(self, args):
    flag = os.path.join(args["model_repository"], "dead")
    if os.path.exists(flag):
        print("the flag is there", file=sys.stderr)
        os._exit(5)

def execute(self, requests):
    open(os.path.join(pb_utils.get_model_dir(), "..", "dead"), "w").close()
    os._exit(6)
"""
# Its child holds the other end of every socket.
FORKING = """
def initialize(self, args):
    if not os.fork():
        time.sleep(1000)

def execute(self, requests):
    open(os.path.join(pb_utils.get_model_dir(), "begun"), "w").close()
    time.sleep(1000)
"""
ASKED = """
def is_ready(self):
    flag = os.path.join(pb_utils.get_model_dir(), "ready")
    text = open(flag).read() if os.path.exists(flag) else "True"
    return eval(text)

def execute(self, requests):
    return [pb_utils.InferenceResponse([]) for _ in requests]
"""

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
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = link_models(tmp_path_factory.mktemp("models"), "simple")
    write_model(repository, "dying", DYING, LIMITED)
    write_model(repository, "asked", ASKED)
    write_model(repository, "loop", LOOP)
    for name, asked in (("itself", "itself"), ("first", "around_second"), ("second", "first"), ("other", "simple")):
        write_model(repository, name, ASK.format(asked))
    inputs, outputs = ([(f"{side}{n}", "TYPE_INT32", [16]) for n in range(2)] for side in ("INPUT", "OUTPUT"))
    mapped = [{name: name for name, *_ in side} for side in (inputs, outputs)]
    for name in ("loop", "second"):
        write_ensemble(repository, f"around_{name}", inputs, outputs, [step(name, *mapped)])
    return repository


@pytest.fixture(scope="module")
def server(http_workers: str, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = ["--model-control-mode=explicit", "--load-model=*", "--model-unload-timeout-secs=1"]
    log = tmp_path_factory.mktemp("log") / "log"
    with ServerProcess(models, log, "--shutdown-grace-secs=0", *options) as running:
        yield running


def ask(server: ServerProcess, model: str, first: int = 0) -> tuple[int, str]:
    """The status and the error of a request with this first number."""
    status, _, body = server.request("POST", f"/v2/models/{model}/infer", json.dumps(pair(seed=first)).encode())
    return status, json.loads(body).get("error", "")


def is_ready(server: ServerProcess, model: str) -> bool:
    status = server.request("GET", f"/v2/models/{model}/ready")[0]
    assert status in (200, 400)
    return status == 200


def value(server: ServerProcess, metric: str, labels: str) -> float:
    page = server.request("GET", "/metrics", port=server.metrics_port)[2].decode()
    (line,) = [line for line in page.splitlines() if line.startswith(f'{metric}{{{labels},version="1"}}')]
    return float(line.rpartition(" ")[2])


def restarts(server: ServerProcess, model: str) -> float:
    return value(server, "trident_model_process_restarts_total", f'instance="{model}_0_0",model="{model}"')


@pytest.fixture
def dying(server: ServerProcess) -> str:
    """The model, serving."""
    until(lambda: is_ready(server, "dying"), server.log_text)
    return "dying"


@pytest.mark.parametrize("first", [101, 102, 103, 104])
def test_process_that_dies_or_hangs_is_started_again(server: ServerProcess, dying: str, first: int) -> None:
    before = restarts(server, dying)
    reason = "an execution took longer than EXECUTION_LIMIT_SECONDS (3 s) allows"
    is_limit = first > 102
    error = f"The process of model instance 'dying_0_0' was killed, because {reason}."
    assert ask(server, dying, first) == (500, error if is_limit else "Stub process 'dying_0_0' is not healthy.")
    if is_limit:
        text = f"the process of model instance 'dying_0_0' was killed because {reason}"
        until(lambda: text in server.log_text(), server.log_text)
    until(lambda: restarts(server, dying) == before + 1, server.log_text)
    until(lambda: is_ready(server, dying), server.log_text)
    assert_adds(server, dying, seed=1)
    assert_still_serves(server)
    if first == 102:
        until(lambda: re.search(r"was ended by SIGSEGV.*model\.py.*in execute", server.log_text()), server.log_text)


def test_pauses_grow_while_a_model_dies_at_its_start(http_workers: str, tmp_path: Path) -> None:
    repository = link_models(tmp_path / "models", "simple")
    model = write_model(repository, "dies", DIES_AT_START)
    with ServerProcess(repository, tmp_path / "log", "--shutdown-grace-secs=0") as server:
        assert is_ready(server, "dies")
        assert ask(server, "dies", 1) == (500, "Stub process 'dies_0_0' is not healthy.")
        until(lambda: "the next try is in 1 s" in server.log_text(), server.log_text)
        assert not is_ready(server, "dies")
        assert server.request("GET", "/v2/health/ready")[0] == 400
        (entry,) = [each for each in server.json("POST", "/v2/repository/index") if each["name"] == "dies"]
        assert "ended with status 5; its last lines were: the flag is there" in entry["reason"]
        assert ask(server, "dies", 1) == (500, "Stub process is not healthy.")
        until(lambda: "the next try is in 3 s" in server.log_text(), server.log_text)
        (model / "dead").unlink()
        until(lambda: is_ready(server, "dies"), server.log_text)
        until(lambda: server.request("GET", "/v2/health/ready")[0] == 200)


def test_process_with_children_is_noticed_when_it_dies(http_workers: str, tmp_path: Path) -> None:
    repository = link_models(tmp_path / "models", "simple")
    model = write_model(repository, "forking", FORKING)
    with ServerProcess(repository, tmp_path / "log", "--shutdown-grace-secs=0") as server, ThreadPoolExecutor(1) as one:
        stub = stubs_of(server)["forking_0_0"]
        group = [process for process in children_of(stub) if is_alive(process)]
        assert len(group) == 1
        answer = one.submit(ask, server, "forking", 1)
        until((model / "1" / "begun").exists)
        os.kill(stub, signal.SIGKILL)
        assert answer.result(60) == (500, "Stub process 'forking_0_0' is not healthy.")
        until(lambda: not is_alive(group[0]))
        until(lambda: restarts(server, "forking") == 1, server.log_text)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("False", "Model 'asked_0_0' is not ready (user-defined check failed)."),
        ("1", "is_ready() must return a boolean value"),
        ("1 / 0", "division by zero"),
        ("time.sleep(6)", "Timed out waiting for user-defined is_ready() response"),
    ],
)
def test_model_is_ready_method_decides_readiness(server: ServerProcess, models: Path, answer: str, reason: str) -> None:
    assert is_ready(server, "asked")
    (models / "asked" / "1" / "ready").write_text(answer)
    try:
        assert not is_ready(server, "asked")
    finally:
        (models / "asked" / "1" / "ready").unlink()
    until(lambda: reason in server.log_text(), server.log_text)
    assert server.json("POST", "/v2/models/asked/infer", pair())["outputs"] == []
    until(lambda: is_ready(server, "asked"))


# --- executions that never end


@pytest.mark.parametrize("model", ["itself", "first", "second"])
def test_model_that_would_wait_for_itself_is_refused(server: ServerProcess, model: str) -> None:
    status, error = ask(server, model)
    assert status == 500
    assert "would never answer: instance" in error
    assert "instance_group.count" in error
    assert ask(server, "other") == (200, "")  # nothing is left of a wait that has ended


@pytest.mark.parametrize("model", ["loop", "around_loop"])
def test_unload_kills_endless_executions(server: ServerProcess, model: str) -> None:
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
        until(lambda: value(server, "nv_inference_pending_request_count", 'model="loop"') == 1)
        statistics = server.json("GET", "/v2/models/loop/stats")["model_stats"][0]
        assert (statistics["execution_count"], statistics["last_inference"] > 0) == (0, True)
        assert value(server, "trident_oldest_execution_seconds", 'model="loop"') > 0
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
