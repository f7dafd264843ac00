"""Sequences that clients abandon, and those whose model loses its process.

What sequences get and what is refused: `tests/triton_answers/sequences.py`.
Source: docs/spec/schedulers.md sections 3.3 and 3.4.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from tests.contract.python.python_models import stubs_of
from tests.contract.sequences.sequence_models import write_models
from tests.contract.servers.server import ServerProcess
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = write_models(tmp_path_factory.mktemp("models"))
    options = ("--model-control-mode=explicit", "--load-model=*", "--shutdown-grace-secs=0", "--exit-timeout-secs=5")
    with ServerProcess(models, tmp_path_factory.mktemp("log") / "log", *options) as running:
        yield running


def ask(server: ServerProcess, model: str, sequence: int, place: str = "") -> tuple[int, str]:
    """The status, and the error or the flags START and END that the model saw."""
    marks = {"sequence_id": sequence, "sequence_start": "s" in place, "sequence_end": "e" in place}
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [1]}
    body = json.dumps({"parameters": marks, "inputs": [tensor]}).encode()
    status, _, content = server.request("POST", f"/v2/models/{model}/infer", body)
    answer = json.loads(content)
    if status != 200:
        return status, answer["error"]
    outputs = {each["name"]: each["data"] for each in answer["outputs"]}
    return status, "".join(letter for letter, name in (("s", "OUT_START"), ("e", "OUT_END")) if outputs[name] == [1])


def start_missing(sequence: int, model: str) -> tuple[int, str]:
    text = "must specify the START flag on the first request of the sequence"
    return 400, f"inference request for sequence {sequence} to model '{model}' {text}"


def test_disconnected_client_frees_its_sequence_slot(server: ServerProcess) -> None:
    assert ask(server, "quick", 5, "s") == (200, "s")
    # It waits until the first sequence has been idle for too long.
    assert ask(server, "quick", 6, "se") == (200, "se")
    assert ask(server, "quick", 5) == start_missing(5, "quick")


def test_dead_python_process_loses_its_sequences(server: ServerProcess) -> None:
    assert ask(server, "python", 14, "s") == (200, "s")
    before = stubs_of(server)
    for process in before.values():
        os.kill(process, signal.SIGKILL)
    until(lambda: not set(before.values()) & set(stubs_of(server).values()) and len(stubs_of(server)) == len(before))
    until(lambda: server.request("GET", "/v2/models/python/ready")[0] == 200)
    assert ask(server, "python", 14) == start_missing(14, "python")
    assert [ask(server, "python", 14, place)[1] for place in ("s", "e")] == ["s", "e"]
