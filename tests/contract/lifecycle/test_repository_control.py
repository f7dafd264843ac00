"""Load, unload and index in explicit mode, with NVIDIA's client, with plain requests, and as Triton was recorded.

Source: docs/spec/http.md section 8; docs/spec/repository.md sections 1.4, 1.6 and 1.7.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.changing_files import found_below
from tests.contract.lifecycle.changing_models import (
    OVERRIDE,
    UNLOADED,
    WIDTH,
    Gate,
    add_scaled,
    factor_of,
    index,
    load,
    scaled,
    state,
)
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import assert_still_serves, link_models
from tests.project import ROOT
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]

READY = {"version": "1", "state": "READY"}
GONE = {"version": "1", **UNLOADED}


@pytest.fixture(scope="module")
def temporary(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's folder for temporary files."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory, temporary: Path) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("control")
    options = ("--model-control-mode=explicit", "--load-model=simple", "--shutdown-grace-secs=0")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TMPDIR", str(temporary))
        running = ServerProcess(link_models(folder / "models", "simple"), folder / "log", *options)
        with running:
            yield running
            assert "unexpected error in the server" not in running.log_text()


@pytest.fixture
def model(server: ServerProcess, request: pytest.FixtureRequest) -> Path:
    """The directory of a model that doubles. It is not loaded, and of this test only."""
    return add_scaled(server.repository, re.sub(r"\W", "_", request.node.name), 2.0)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address) as client:
        yield client


def ones() -> list[Any]:
    made = triton.InferInput("INPUT0", [1, WIDTH], "FP32")
    made.set_data_from_numpy(np.ones((1, WIDTH), np.float32))
    return [made]


def entries_of(listing: list[dict[str, str]], name: str) -> list[dict[str, str]]:
    return [{key: value for key, value in entry.items() if key != "name"} for entry in listing if entry["name"] == name]


# --- the client


def test_client_loads_and_unloads_a_model(server: ServerProcess, client: Any, model: Path) -> None:
    assert entries_of(client.get_model_repository_index(), model.name) == [{}]
    with pytest.raises(InferenceServerException, match=f"Request for unknown model: '{model.name}' is not found"):
        client.infer(model.name, ones())
    client.load_model(model.name)
    assert client.is_model_ready(model.name)
    assert entries_of(client.get_model_repository_index(), model.name) == [READY]
    assert client.infer(model.name, ones()).as_numpy("OUTPUT0").tolist() == [[2.0] * WIDTH]
    client.unload_model(model.name, unload_dependents=True)
    until(lambda: index(server, model.name) == [GONE], "not unloaded")
    with pytest.raises(InferenceServerException, match="has no available versions"):
        client.infer(model.name, ones())
    client.load_model(model.name)
    assert client.infer(model.name, ones()).as_numpy("OUTPUT0").tolist() == [[2.0] * WIDTH]


@pytest.mark.parametrize("name", ["模型 a.b", "a%20b"])
def test_client_controls_a_model_whose_name_is_encoded_in_paths(server: ServerProcess, client: Any, name: str) -> None:
    add_scaled(server.repository, name, 2.0)
    given = {"config": OVERRIDE, "files": {"file:1/model.onnx": scaled(3.0).SerializeToString()}}
    for factor, parameters in ((2.0, {}), (3.0, given)):
        client.load_model(name, **parameters)
        assert client.is_model_ready(name)
        assert client.infer(name, ones()).as_numpy("OUTPUT0").tolist() == [[factor] * WIDTH]
        client.unload_model(name)
        until(lambda: index(server, name) == [GONE], "not unloaded")


def test_given_files_replace_the_directory_until_a_plain_load(
    server: ServerProcess, client: Any, model: Path, temporary: Path
) -> None:
    (model / "2").mkdir()
    (model / "2" / "model.onnx").write_bytes(b"never looked at")
    files = {"file:1/model.onnx": scaled(5.0).SerializeToString()}
    client.load_model(model.name, config=OVERRIDE, files=files)
    assert factor_of(server, model.name) == 5.0
    assert index(server, model.name) == [READY]
    assert found_below(temporary, "trident-override-*")
    (model / "2" / "model.onnx").write_bytes(scaled(6.0).SerializeToString())
    client.load_model(model.name)
    assert factor_of(server, model.name) == 6.0
    until(lambda: not found_below(temporary, "trident-override-*"), "the files of the request are still there")


def test_failed_load_and_calls_after_it_hint_at_the_cure(server: ServerProcess) -> None:
    folder = server.repository / "pointer" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n")
    for status, path in ((400, "/v2/repository/models/pointer/load"), (503, "/v2/models/pointer/infer")):
        answered, _, body = server.request("POST", path, b'{"inputs": []}' if "infer" in path else b"{}")
        assert (answered, json.loads(body)["hint"].partition(":")[0]) == (
            status,
            "the file is a Git LFS pointer, not the model",
        )


# --- refusals


NOT_POLLED = "failed to load '%s', failed to poll from model repository"


@pytest.mark.parametrize("config", ["{", "[" * 100_000])
def test_bad_configuration_is_refused(server: ServerProcess, config: str) -> None:
    assert load(server, "simple", config=config) == (500, NOT_POLLED % "simple")
    assert state(server, "simple") == "READY"
    assert_still_serves(server)
    assert load(server, "simple") == (200, "")
    assert index(server, "simple") == [READY]  # and no reason


# --- concurrent requests


def test_slow_loads_hold_up_nothing(server: ServerProcess) -> None:
    """More loads than run at a time are blocked, each on its connection. Everything else is answered."""
    gates = [Gate(server.repository, f"gated_{number}", float(number)) for number in range(5)]
    quick = add_scaled(server.repository, "quick", 3.0)
    with ThreadPoolExecutor(2 * len(gates)) as pool:
        loads = [pool.submit(load, server, gate.model.name) for gate in gates]
        try:
            until(lambda: all(state(server, gate.model.name) == "LOADING" for gate in gates), "not all are loading")
            for _ in range(20):
                assert_still_serves(server)
                assert server.request("GET", "/v2/health/live")[0] == 200
                assert all(state(server, gate.model.name) == "LOADING" for gate in gates)
            assert index(server, quick.name) == [{}]
            status, _, answer = server.request("GET", f"/v2/models/{gates[0].model.name}/ready")
            assert (status, b"is not at ready state" in answer or b"has no available versions" in answer) != (200, True)
            assert not any(each.done() for each in loads)
        finally:
            # All at the same time: the server decides which loads run and which are queued.
            list(pool.map(Gate.open, gates))
        assert [each.result() for each in loads] == [(200, "")] * len(gates)
    assert [factor_of(server, gate.model.name) for gate in gates] == [float(number) for number in range(5)]
    assert load(server, quick.name) == (200, "")


# --- the recorded exchanges with Triton, replayed in order: status, content type and body must be equal, except for the
# path of the repository

GOLDEN = ROOT / "tests" / "golden"
RECORDED_REPOSITORY = "/models"
NOT_LOADED_AT_START = {"badcfg", "broken"}
LIMIT_S = 30.0
# Readiness of a missing model: this server gives the error of a later Triton.
OTHERWISE = {142: (404, {"error": "Request for unknown model: 'cls' has no available versions"})}

Exchange = dict[str, Any]


def exchanges() -> list[Exchange]:
    lines = (GOLDEN / "exchanges.jsonl").read_text().splitlines()
    return [exchange for exchange in map(json.loads, lines) if exchange["section"] == "Repository"]


@pytest.fixture(scope="module")
def recording_server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    names = sorted({model.name for model in (GOLDEN / "models").iterdir()} - NOT_LOADED_AT_START)
    options = ["--shutdown-grace-secs=0", "--model-control-mode=explicit", *(f"--load-model={name}" for name in names)]
    with ServerProcess(GOLDEN / "models", tmp_path_factory.mktemp("log") / "log", *options) as running:
        yield running


def send(server: ServerProcess, exchange: Exchange) -> tuple[int, Any, bytes]:
    body = base64.b64decode(exchange["req_body_b64"])
    return server.request(exchange["method"], exchange["path"], body or None, exchange["req_headers"])


def test_recorded_section_is_answered_as_by_triton(recording_server: ServerProcess) -> None:
    recorded = exchanges()
    assert len(recorded) == 21
    for exchange in recorded:
        status, headers, answer = send(recording_server, exchange)
        expected = base64.b64decode(exchange["resp_body_b64"])
        deadline = time.monotonic() + LIMIT_S
        # An unload is answered when it begins, and Triton was asked during it. Wait for its end.
        while b"UNLOADING" in answer and time.monotonic() < deadline:
            status, headers, answer = send(recording_server, exchange)
        if exchange["n"] in OTHERWISE:
            assert (status, meaning(answer.decode())) == OTHERWISE[exchange["n"]]
            continue
        assert status == int(exchange["status"].split()[0]), (exchange["n"], answer)
        assert headers["Content-Type"] == exchange["resp_headers"].get("Content-Type"), exchange["n"]
        ours = answer.decode().replace(str(GOLDEN / "models"), RECORDED_REPOSITORY)
        assert meaning(ours) == meaning(expected.decode()), exchange["n"]


def meaning(text: str) -> object:
    document = json.loads(text) if text else None
    if isinstance(document, dict) and "error" in document:
        return {"error": document["error"]}  # this server adds a hint
    if isinstance(document, list):
        return [UNLOADED | {"name": i["name"], "version": i["version"]} if is_leaving(i) else i for i in document]
    return document


def is_leaving(item: dict[str, str]) -> bool:
    return item.get("state") == "UNLOADING"
