"""Loads that Python models refuse, and models that control others: one server in explicit mode.

Source: docs/spec/python-backend.md sections 4.1, 4.3, 4.4 and 4.6.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.lifecycle.changing_models import load
from tests.contract.python.python_models import stubs_of
from tests.contract.servers.server import ServerProcess
from tests.waiting import until

pytestmark = pytest.mark.slow

CONFIG = 'backend: "python"\nmax_batch_size: 0\n'
IN_OUT = """
input [ { name: "IN", data_type: TYPE_STRING, dims: [ -1 ] } ]
output [ { name: "OUT", data_type: TYPE_STRING, dims: [ -1 ] } ]
"""
HEAD = "import os, sys\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n"
CLASS = f"{HEAD}class TritonPythonModel:\n"
# `execute` calls the method whose name the request has, and returns the text that it returns.
METHODS = f"""{CLASS}
    def execute(self, requests):
        responses = []
        for request in requests:
            name, *arguments = [text.decode() for text in request.inputs()[0].as_numpy()]
            answer = str(getattr(self, name)(*arguments))
            tensor = pb_utils.Tensor("OUT", np.array([answer], np.object_))
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
"""
CONTROLLER = f"""{METHODS}
    def load_file(self, name, source):
        config = '{{"backend": "python", "max_batch_size": 0}}'
        return pb_utils.load_model(name, config, {{"file:1/model.py": source.encode()}})

    def unload(self, name):
        return pb_utils.unload_model(name)

    def ask(self, name, *arguments):
        tensor = pb_utils.Tensor("IN", np.array(arguments, np.object_))
        asked = pb_utils.InferenceRequest(model_name=name, requested_output_names=["OUT"], inputs=[tensor])
        response = asked.exec()
        if response.has_error():
            return response.error().message()
        return pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()[0].decode()

    def name(self):
        return __name__
"""
ECHO = f"""{METHODS}
    def echo(self, text):
        return text
"""

# A backend: its models are JSON files.
TABLES = f"""{METHODS}
    @staticmethod
    def auto_complete_config(config):
        config.add_input({{"name": "IN", "data_type": "TYPE_STRING", "dims": [-1]}})
        config.add_output({{"name": "OUT", "data_type": "TYPE_STRING", "dims": [-1]}})
        return config

    def initialize(self, args):
        import json
        with open(os.path.join(pb_utils.get_model_dir(), "model.json")) as file:
            self.table = json.load(file)

    def look_up(self, key):
        return self.table[key]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    write(repository, "controller", CONTROLLER, CONFIG + IN_OUT + "instance_group [ { kind: KIND_CPU count: 2 } ]")
    write(repository, "echo", ECHO, CONFIG + IN_OUT + "instance_group [ { kind: KIND_CPU } ]")
    log = tmp_path_factory.mktemp("server") / "log"
    backends = tmp_path_factory.mktemp("backends")
    (backends / "tables").mkdir()
    (backends / "tables" / "model.py").write_text(TABLES)
    options = ("--model-control-mode=explicit", "--load-model=controller", f"--backend-directory={backends}")
    with ServerProcess(repository, log, *options) as running:
        yield running


def write(repository: Path, name: str, source: str, config: str | None = CONFIG) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / "model.py").write_text(source)
    if config is not None:
        (repository / name / "config.pbtxt").write_text(config)


def call(server: ServerProcess, model: str, *words: str) -> str:
    """The text that the method returns, or the error."""
    body = {"inputs": [{"name": "IN", "datatype": "BYTES", "shape": [len(words)], "data": words}]}
    answer = json.loads(server.request("POST", f"/v2/models/{model}/infer", json.dumps(body).encode())[2])
    return str(answer["error"] if "error" in answer else answer["outputs"][0]["data"][0])


def test_model_may_load_others_while_it_is_loaded_but_not_itself(tmp_path: Path) -> None:
    asking = f"{METHODS}\n    def initialize(self, args):\n        pb_utils.load_model('OTHER')\n"
    for name, other in (("first", "second"), ("second", "third"), ("own", "own"), ("one", "two"), ("two", "one")):
        write(tmp_path / "models", name, asking.replace("OTHER", other), CONFIG + IN_OUT)
    write(tmp_path / "models", "third", ECHO, CONFIG + IN_OUT)
    options = ("--model-control-mode=explicit", "--model-load-thread-count=1", "--shutdown-grace-secs=0")
    with ServerProcess(tmp_path / "models", tmp_path / "log", *options) as server:
        assert load(server, "first")[0] == 200
        assert call(server, "third", "echo", "there") == "there"
        for name, asked in (("own", "own"), ("one", "one")):
            status, reason = load(server, name)
            assert status == 400
            assert f"cannot ask for '{asked}' while it is being loaded itself" in reason


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "import no_such_module",
            "ModuleNotFoundError: No module named 'no_such_module'\n\nAt:\n  {file}(1): <module>",
        ),
        (f"{CLASS}    def initialize(self, args):\n        os._exit(3)", "Stub process '{name}_0' is not healthy."),
        (f"{HEAD}os._exit(3)", "Stub process '{name}' is not healthy."),
    ],
)
def test_failed_load_has_its_reason(
    server: ServerProcess, request: pytest.FixtureRequest, source: str, reason: str
) -> None:
    name = f"refused_{next(iter(request.node.callspec.indices.values()))}"
    write(server.repository, name, source)
    before = stubs_of(server)
    status, error = load(server, name)
    assert status == 400
    expected = reason.format(name=name, file=server.repository / name / "1" / "model.py")
    assert expected in error
    index = {entry["name"]: entry for entry in server.json("POST", "/v2/repository/index")}
    assert expected in index[name]["reason"]
    until(lambda: stubs_of(server) == before, "a process was left")


def test_model_is_loaded_from_files_in_the_call(server: ServerProcess) -> None:
    assert call(server, "controller", "load_file", "made_here", ECHO) == "None"
    assert server.json("GET", "/v2/models/made_here/config")["backend"] == "python"
    assert call(server, "controller", "unload", "made_here") == "None"


def test_error_of_a_models_other_instance_is_unchanged(server: ServerProcess) -> None:
    assert call(server, "controller", "ask", "controller", "name") == "1.model"
    asked = call(server, "controller", "ask", "controller", "no_such_method")
    assert asked.startswith("Failed to process the request(s) for model 'controller_0_")
    assert "AttributeError: 'TritonPythonModel' object has no attribute 'no_such_method'" in asked


def test_inputs_need_not_be_declared(server: ServerProcess) -> None:
    write(server.repository, "undeclared", ECHO, None)
    assert load(server, "undeclared") == (200, "")
    assert server.json("GET", "/v2/models/undeclared")["inputs"] == []


def test_python_backend_serves_models(server: ServerProcess) -> None:
    for name in ("fruits", "colours"):
        version = server.repository / name / "1"
        version.mkdir(parents=True)
        (version / "model.json").write_text(json.dumps({"what": name}))
        (server.repository / name / "config.pbtxt").write_text('backend: "tables"\n')
        assert load(server, name) == (200, "")
        assert call(server, name, "look_up", "what") == name
    assert server.json("GET", "/v2/models/fruits/config")["backend"] == "tables"
