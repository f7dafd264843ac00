"""Python models from their load to their end: what they answer and leave behind, and that nothing outlives the server.

Source: docs/spec/python-backend.md sections 4.1, 4.2, 4.5 and 4.6.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.lifecycle.changing_models import load, unload
from tests.contract.python.python_models import ADD_SUB, INT32_PAIR, assert_adds, is_alive, pair, stubs_of, write_model
from tests.contract.servers.processes import engine_of, open_files
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.waiting import until

pytestmark = pytest.mark.slow

CYCLES = 20
# A response in a file says when the execution may end.
HOLDING = """
def execute(self, requests):
    folder = pb_utils.get_model_dir()
    open(os.path.join(folder, "begun"), "w").close()
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.01)
    tensor = pb_utils.get_input_tensor_by_name(requests[0], "INPUT0")
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy())])]

def finalize(self):
    print("finalized")
"""
HUNGRY = """
def execute(self, requests):
    hoard = np.ones(1 << 28)
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", hoard[:16].astype(np.int32).reshape(1, 16))])]
"""
SMALL = INT32_PAIR + 'parameters { key: "MEMORY_LIMIT_BYTES" value { string_value: "1000000000" } }'


FORKING = """
def initialize(self, args):
    self.child = os.fork()
    if not self.child:
        while True:
            time.sleep(100)

def execute(self, requests):
    child = np.full((1, 16), self.child, np.int32)
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", child)]) for _ in requests]
"""

# Multiprocessing ends the processes of a pool by SIGTERM.
SIGNALLED = """
def execute(self, requests):
    import multiprocessing, signal, subprocess
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    forked.start()
    forked.terminate()
    forked.join()
    other = subprocess.Popen(["sleep", "600"])
    other.terminate()
    codes = np.array([forked.exitcode, other.wait()] * 8, np.int32)
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", codes.reshape(1, 16))])]
"""

# What it leaves in its folder shows what ran at its end.
ENDING = """
def initialize(self, args):
    import atexit, logging, logging.handlers
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import shared_memory
    folder = pb_utils.get_model_dir()
    atexit.register(lambda: open(os.path.join(folder, "ended"), "w").close())
    atexit.register(pb_utils.Logger.log_info, "the last line")
    file = logging.FileHandler(os.path.join(folder, "lines"))
    logging.getLogger().addHandler(logging.handlers.MemoryHandler(1000, logging.CRITICAL, file))
    logging.getLogger().warning("a line")
    self.memory = shared_memory.SharedMemory(f"trident-test-{os.getpid()}", create=True, size=4096)
    self.pool = ProcessPoolExecutor(1)
    self.pool.submit(abs, 1).result()

def execute(self, requests):
    return [pb_utils.InferenceResponse([]) for _ in requests]
"""
ENDLESS_THREAD = """
def initialize(self, args):
    import atexit
    atexit.register(lambda: open(os.path.join(pb_utils.get_model_dir(), "ended"), "w").close())
    threading.Thread(target=self.run, name="endless").start()

def run(self):
    while True:
        time.sleep(1)
"""


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = link_models(tmp_path_factory.mktemp("models"), "simple")
    write_model(repository, "add_sub")
    options = ("--model-control-mode=explicit", "--load-model=simple", "--shutdown-grace-secs=0")
    with ServerProcess(repository, tmp_path_factory.mktemp("log") / "log", *options) as running:
        yield running


def leave(server: ServerProcess, model: str) -> None:
    """Unload a model, and wait until its processes are gone."""
    processes = [process for name, process in stubs_of(server).items() if name.startswith(model)]
    unload(server, model)
    until(lambda: not any(map(is_alive, processes)), server.log_text)


def test_repeated_load_and_unload_leaks_nothing(server: ServerProcess) -> None:
    for _ in range(2):  # what is imported and opened once
        assert load(server, "add_sub")[0] == 200
        leave(server, "add_sub")
    until(lambda: not stubs_of(server))
    before = open_files(server)
    for cycle in range(CYCLES):
        assert load(server, "add_sub")[0] == 200
        assert_adds(server, "add_sub", seed=cycle)
        leave(server, "add_sub")
    until(lambda: not stubs_of(server), lambda: f"left: {stubs_of(server)}")
    until(lambda: open_files(server) <= before + 1, lambda: f"{before} files before, {open_files(server)} now")
    maps = Path(f"/proc/{engine_of(server)}/maps").read_text()
    assert maps.count("trident-shared-memory") <= 2  # those of the front ends


def test_only_the_children_of_a_models_process_end_by_signals(server: ServerProcess) -> None:
    write_model(server.repository, "signalled", SIGNALLED)
    assert load(server, "signalled")[0] == 200
    answer = server.json("POST", "/v2/models/signalled/infer", pair())
    assert answer["outputs"][0]["data"][:2] == [-signal.SIGTERM, -signal.SIGTERM]
    leave(server, "signalled")


ENDLESS = {
    "initialize": ADD_SUB + "def initialize(self, args):\n    time.sleep(1e6)\n",
    "complete": ADD_SUB + "@staticmethod\ndef auto_complete_config(config):\n    time.sleep(1e6)\n",
    "golden": "def execute(self, requests):\n    time.sleep(1e6)\n",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_unload_ends_a_load_that_does_not_end(server: ServerProcess, name: str) -> None:
    model = write_model(server.repository, name, ENDLESS[name])
    output = {"name": "OUTPUT0", "datatype": "INT32", "shape": [1, 16], "data": [0] * 16}
    golden = {"request": {"inputs": pair()["inputs"]}, "response": {"outputs": [output]}}
    (model / "golden").mkdir()
    (model / "golden" / "g.json").write_text(json.dumps(golden))
    with ThreadPoolExecutor(1) as clients:
        answer = clients.submit(load, server, name)
        until(lambda: stubs_of(server))
        assert unload(server, name) == (200, "")
        status, text = answer.result()
        assert (status, "the model was unloaded while it was being loaded" in text) == (400, True)
    until(lambda: not stubs_of(server))


# A request of zeros never ends.
STUCK = """
def execute(self, requests):
    tensor = pb_utils.get_input_tensor_by_name(requests[0], "INPUT0")
    if not tensor.as_numpy().any():
        open(os.path.join(pb_utils.get_model_dir(), "stuck"), "w").close()
        time.sleep(1e6)
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy())])]
"""
ASKING = """
def execute(self, requests):
    ask = pb_utils.InferenceRequest(model_name="stuck", requested_output_names=["OUTPUT0"], inputs=requests[0].inputs())
    return [pb_utils.InferenceResponse(ask.exec().output_tensors())]
"""
PIPE = """
platform: "ensemble"
max_batch_size: 8
ensemble_scheduling { step [ { model_name: "stuck" model_version: -1
  input_map [ { key: "INPUT0" value: "INPUT0" }, { key: "INPUT1" value: "INPUT1" } ]
  output_map { key: "OUTPUT0" value: "OUTPUT0" } } ] }
"""


@pytest.mark.shapes("one-process", "front-ends")
def test_ended_load_cancels_its_requests_to_other_models(http_workers: str, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    one = INT32_PAIR.replace('{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] },\n', "").replace(
        "OUTPUT1", "OUTPUT0"
    )
    stuck = write_model(repository, "stuck", STUCK, one) / "1" / "stuck"
    write_model(repository, "asking", ASKING, one)
    (repository / "pipe" / "1").mkdir(parents=True)
    (repository / "pipe" / "config.pbtxt").write_text(PIPE + one.partition("instance_group")[0])
    zeros = [{**each, "data": [0] * 16} for each in pair()["inputs"]]
    golden = {"request": {"inputs": zeros}, "response": {"outputs": [{**zeros[0], "name": "OUTPUT0"}]}}
    for name in ("pipe", "asking"):
        (repository / name / "golden").mkdir()
        (repository / name / "golden" / "g.json").write_text(json.dumps(golden))
    options = ("--model-control-mode=explicit", "--load-model=stuck", "--shutdown-grace-secs=0")
    with ThreadPoolExecutor(2) as clients, ServerProcess(repository, tmp_path / "log", *options) as server:
        answer = clients.submit(load, server, "pipe")
        until(stuck.exists, server.log_text)
        assert unload(server, "pipe") == (200, "")
        assert answer.result()[0] == 400
        answered = server.json("POST", "/v2/models/stuck/infer", pair(seed=7))
        assert answered["outputs"][0]["data"] == list(range(7, 23))
        stuck.unlink()
        answer = clients.submit(load, server, "asking")
        until(stuck.exists, server.log_text)
        assert server.stop() == 0, "the stop does not wait for the execution"
        assert answer.result()[0] == 400


def test_unload_waits_for_running_executions(server: ServerProcess) -> None:
    model = write_model(server.repository, "holding", HOLDING)
    assert load(server, "holding")[0] == 200
    with ThreadPoolExecutor(1) as clients:
        answer = clients.submit(server.json, "POST", "/v2/models/holding/infer", pair(seed=7))
        until(lambda: (model / "1" / "begun").exists())
        unload(server, "holding")
        assert server.request("POST", "/v2/models/holding/infer", json.dumps(pair()).encode())[0] == 404
        (model / "1" / "go").touch()
        assert answer.result()["outputs"][0]["data"] == list(range(7, 23))
    until(lambda: not stubs_of(server))
    until(lambda: 'holding_0_0:0] "finalized"' in server.log_text())


def test_model_process_ends_like_a_python_program(server: ServerProcess) -> None:
    before = set(os.listdir("/dev/shm"))
    models = [write_model(server.repository, *each) for each in (("ending", ENDING), ("endless", ENDLESS_THREAD))]
    for model in models:
        assert load(server, model.name)[0] == 200
    (pid,) = [process for name, process in stubs_of(server).items() if name.startswith("ending")]
    leave(server, "ending")
    assert (models[0] / "1" / "ended").exists()
    assert (models[0] / "1" / "lines").read_text() == "a line\n"
    until(lambda: "the last line" in server.log_text(), server.log_text)
    assert f"trident-test-{pid}" not in os.listdir("/dev/shm")
    # Other programs have some for a moment.
    until(lambda: not [name for name in set(os.listdir("/dev/shm")) - before if name.startswith("sem.")])
    leave(server, "endless")
    assert (models[1] / "1" / "ended").exists()
    until(lambda: "these threads did not end: endless" in server.log_text(), server.log_text)


def test_memory_limit_is_an_error_of_the_request(server: ServerProcess) -> None:
    write_model(server.repository, "hungry", HUNGRY, SMALL)
    assert load(server, "hungry")[0] == 200
    status, _, body = server.request("POST", "/v2/models/hungry/infer", json.dumps(pair()).encode())
    assert status == 500
    assert b"Unable to allocate" in body
    assert b"(the parameter MEMORY_LIMIT_BYTES allows 1000000000 bytes)" in body
    leave(server, "hungry")


def test_instances_are_separate_processes_and_change_while_serving(server: ServerProcess) -> None:
    two = INT32_PAIR.replace("KIND_CPU", "KIND_CPU count: 2")
    model = write_model(server.repository, "scaled", more=two)
    assert load(server, "scaled")[0] == 200
    assert set(stubs_of(server)) == {"scaled_0_0", "scaled_0_1"}
    config = model / "config.pbtxt"
    config.write_text(config.read_text().replace("count: 2", "count: 1"))
    assert load(server, "scaled")[0] == 200
    until(lambda: set(stubs_of(server)) == {"scaled_0_0"}, server.log_text)
    assert_adds(server, "scaled")
    assert server.request("GET", "/v2/models/scaled/ready")[0] == 200
    leave(server, "scaled")


@pytest.mark.shapes("front-ends")
def test_killed_server_leaves_no_process(http_workers: str, tmp_path: Path) -> None:
    repository = link_models(tmp_path / "models", "simple")
    write_model(repository, "forking", FORKING)
    with ServerProcess(repository, tmp_path / "log") as server:
        (stub,) = stubs_of(server).values()
        answer = server.json("POST", "/v2/models/forking/infer", pair())
        child = answer["outputs"][0]["data"][0]
        assert is_alive(child)
        os.kill(engine_of(server), signal.SIGKILL)
        server.kill()
        until(lambda: not is_alive(stub) and not is_alive(child), f"process {stub} or its child {child} is alive")
