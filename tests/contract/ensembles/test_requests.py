"""Metadata, configuration and labels of ensembles. Requests: `tests/triton_answers/ensembles.py`.

Source: docs/spec/schedulers.md section 3.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.ensembles.ensemble_models import step, write_ensemble
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.unit.onnx_models import add_sub, write_version

pytestmark = pytest.mark.slow

WIDTH = 16
PAIR = [(f"INPUT{n}", "TYPE_INT32", [WIDTH]) for n in range(2)]
RESULTS = [(f"OUTPUT{n}", "TYPE_INT32", [WIDTH]) for n in range(2)]
FIRST = step("first", {"INPUT0": "INPUT0", "INPUT1": "INPUT1"}, {"OUTPUT0": "sum", "OUTPUT1": "difference"})
SECOND = step("second", {"INPUT0": "sum", "INPUT1": "difference"}, {"OUTPUT0": "OUTPUT0", "OUTPUT1": "OUTPUT1"})


def write_models(repository: Path) -> Path:
    link_models(repository, "cls")
    for name in ("first", "second"):
        write_version(add_sub(), repository, name, "max_batch_size: 8 dynamic_batching {}")
    write_ensemble(repository, "chain", PAIR, RESULTS, [FIRST, SECOND])
    scores = [step("cls", {"IN": "DATA"}, {"OUT": "SCORES"})]
    write_ensemble(repository, "labelled", [("DATA", "TYPE_FP32", [4])], [("SCORES", "TYPE_FP32", [4])], scores)
    return repository


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("ensembles")
    with ServerProcess(write_models(folder / "models"), folder / "log", "--shutdown-grace-secs=0") as running:
        yield running


def test_metadata_and_configuration_are_those_of_the_ensemble(server: ServerProcess) -> None:
    metadata = server.json("GET", "/v2/models/chain")
    assert metadata["platform"] == "ensemble"
    assert metadata["inputs"] == [{"name": name, "datatype": "INT32", "shape": [-1, WIDTH]} for name, _, _ in PAIR]
    config = server.json("GET", "/v2/models/chain/config")
    assert [each["model_name"] for each in config["ensemble_scheduling"]["step"]] == ["first", "second"]
    assert config["ensemble_scheduling"]["step"][0]["output_map"] == {"OUTPUT0": "sum", "OUTPUT1": "difference"}
    assert config["model_transaction_policy"] == {"decoupled": False}
    assert config["instance_group"] == []


def test_labels_are_those_of_the_step_that_makes_the_output(server: ServerProcess) -> None:
    def labels(model: str, source: str, output: str) -> Any:
        tensor = {"name": source, "datatype": "FP32", "shape": [1, 4], "data": [0.0, 1.0, 2.0, 3.0]}
        wanted = {"name": output, "parameters": {"classification": 2}}
        answer = server.json("POST", f"/v2/models/{model}/infer", {"inputs": [tensor], "outputs": [wanted]})
        return answer["outputs"][0]["data"]

    found = labels("labelled", "DATA", "SCORES")
    assert found == labels("cls", "IN", "OUT")
    assert [label.count(":") for label in found] == [2, 2]
