"""`--payload-log` in every shape and protocol, its events at a collector, and `trident bench --replay` of it.

Source: docs/payload-log.md, docs/spec/trace-and-log.md "In Trident".
"""

from __future__ import annotations

import json
import re
import shutil
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.contract.python.python_models import ADD_SUB, INT32_PAIR, write_model
from tests.contract.servers.event_collector import EventCollector, ReceivedEvent
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import good_document, link_models
from tests.contract.shared_memory.client_regions import memory, speaker
from tests.project import ROOT
from tests.waiting import until
from trident.app.cli import main
from trident.core.inference.tensors import Array

pytestmark = pytest.mark.slow

QUIET = INT32_PAIR + 'parameters { key: "PAYLOAD_LOG" value { string_value: "false" } }'
# Answers as ADD_SUB does, but one request in a hundred otherwise.
CHANGED = ADD_SUB.replace("a + b", "a + b + (a == 7)")
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def lines(folder: Path) -> list[dict[str, Any]]:
    """Records of the log so far, in the order of the requests."""
    texts = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    return sorted(map(json.loads, texts), key=lambda line: str(line["time"]))


def infer(server: ServerProcess, model: str, *tensors: tuple[str, str, Array], grpc: bool = False, **more: Any) -> Any:
    library: Any = tritonclient.grpc if grpc else tritonclient.http
    inputs = []
    for name, datatype, array in tensors:
        inputs.append(library.InferInput(name, list(array.shape), datatype))
        inputs[-1].set_data_from_numpy(array)
    with library.InferenceServerClient(f"{HOST}:{server.grpc_port}" if grpc else server.address) as client:
        return client.infer(model, inputs, **more)


def add_sub(server: ServerProcess, value: int, *, model: str = "simple", grpc: bool = False, **more: Any) -> Any:
    array = np.full((1, 16), value, np.int32)
    return infer(server, model, ("INPUT0", "INT32", array), ("INPUT1", "INT32", array), grpc=grpc, **more)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = link_models(tmp_path_factory.mktemp("models"), "simple", "identity_fp32", "str_id")
    (folder / "stream_words").symlink_to(ROOT / "deploy" / "examples" / "stream_words")
    write_model(folder, "quiet", ADD_SUB, QUIET)
    return folder


@pytest.fixture(scope="module")
def logged(
    http_workers: str, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, Path]]:
    folder = tmp_path_factory.mktemp("logs") / "payloads"
    options = (
        f"--payload-log={folder}",
        "--payload-log-max-bytes=4096",
        "--payload-log-redact=Secret-Note",
        "--http-header-forward-pattern=.*",
        "--allow-client-shm=true",
        "--shutdown-grace-secs=0",
    )
    with ServerProcess(models, tmp_path_factory.mktemp("log") / "log", *options) as server:
        yield server, folder


@pytest.mark.shapes("one-process", "front-ends", "two-engines")
def test_requests_of_all_protocols_are_recorded_with_their_answers(logged: tuple[ServerProcess, Path]) -> None:
    server, folder = logged
    server.json("POST", "/v2/models/simple/infer", {"id": "json", **good_document(1)})
    add_sub(server, 2, request_id="binary")
    add_sub(server, 3, grpc=True, request_id="grpc", priority=1, timeout=10**6)
    add_sub(server, 4, model="quiet")
    special = np.array([[np.nan, -0.0, 1e-45]], np.float32)
    infer(server, "identity_fp32", ("INPUT0", "FP32", special), request_id="special")
    infer(server, "identity_fp32", ("INPUT0", "FP32", np.zeros((1, 2000), np.float32)), request_id="large")
    with pytest.raises(InferenceServerException):
        infer(server, "identity_fp32", ("WRONG", "FP32", special), request_id="refused")
    headers = {"Authorization": "Bearer hidden", "Secret-Note": "hidden", "Note": "shown"}
    add_sub(server, 5, request_id="headers", headers=headers)
    shared = np.full((1, 16), 6, np.int32)
    with memory(64) as region, speaker("http", server) as triton:
        region.put(shared)
        triton.client.register_system_shared_memory("region", region.key, 64)
        inputs = [triton.shared_input(name, [1, 16], "INT32", "region", 64) for name in ("INPUT0", "INPUT1")]
        outputs = [triton.shared_output("OUTPUT0", "region", 64), triton.output("OUTPUT1")]
        triton.client.infer("simple", inputs, outputs=outputs, request_id="shared")
        triton.client.unregister_system_shared_memory("region")
    body = json.dumps({"text": "some words here"}).encode()
    server.request("POST", "/v2/models/stream_words/generate_stream", body, {"Content-Type": "application/json"})

    until(lambda: len(lines(folder)) >= 9, "lines are missing")
    found = {line["request"].get("id", "stream"): line for line in lines(folder)}
    assert len(lines(folder)) == len(found) == 9
    assert all(RFC_3339.fullmatch(line["time"]) and line["duration_us"] > 0 for line in found.values())
    line = found["json"]
    assert (line["model_name"], line["model_version"]) == ("simple", "1")
    assert line["request"]["inputs"] == good_document(1)["inputs"]
    assert [each["data"] for each in line["responses"][0]["outputs"]] == [
        [*range(4, 20)],
        [*range(-2, 14)],
    ]
    for name, value in (("binary", 2), ("grpc", 3)):
        assert found[name]["request"]["inputs"][0]["data"] == [value] * 16
        assert found[name]["responses"][0]["outputs"][0]["data"] == [2 * value] * 16
    assert found["grpc"]["request"]["parameters"].items() >= {"priority": 1, "timeout": 10**6}.items()
    tensor = found["special"]["request"]["inputs"][0]
    assert np.array_equal(
        np.frombuffer(b64decode(tensor["base64"], validate=True), np.float32), special[0], equal_nan=True
    )
    assert found["special"]["responses"][0]["outputs"][0]["base64"] == tensor["base64"]
    (tensor,) = found["large"]["request"]["inputs"]
    assert tensor == {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2000], "left_out": "size"}
    assert "WRONG" in found["refused"]["responses"][0]["error"]
    request = found["headers"]["request"]
    shown = {name.lower(): value for name, value in request["parameters"].items()}
    assert shown["note"] == "shown"
    assert [name.lower() for name in request["redacted_parameters"]] == ["authorization", "secret-note"]
    words = [each["outputs"][0]["data"] for each in found["stream"]["responses"]]
    assert words == [["some"], ["words"], ["here"]]
    assert not any("hidden" in file.read_text() for file in folder.iterdir())
    assert all(file.stat().st_mode & 0o077 == 0 for file in folder.iterdir())
    inputs, outputs = found["shared"]["request"]["inputs"], found["shared"]["responses"][0]["outputs"]
    assert [each.get("left_out", "") for each in (*inputs, *outputs)] == ["shared_memory"] * 3 + [""]
    until(lambda: server.metric("trident_payload_log_written_total") == 9, "it is not counted")
    assert server.metric("trident_payload_log_lost_total") == 0


# --- events


@pytest.fixture
def collected(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[ServerProcess, EventCollector]]:
    monkeypatch.setenv("INFERENCE_SERVICE_NAME", "sums")
    with EventCollector() as collector:
        options = (f"--payload-log={collector.url}", "--http-workers=0", "--shutdown-grace-secs=0")
        with ServerProcess(models, tmp_path / "log", *options) as server:
            yield server, collector


def test_a_collector_gets_events_as_from_kserve(collected: tuple[ServerProcess, EventCollector]) -> None:
    server, collector = collected
    add_sub(server, 3, request_id="r")
    with pytest.raises(InferenceServerException):
        infer(server, "identity_fp32", ("WRONG", "FP32", np.zeros((1, 1), np.float32)))
    until(lambda: len(collector.events) == 3, "events are missing")
    by_type: dict[str, list[ReceivedEvent]] = {}
    for event in collector.events:
        attributes = dict(event.attributes)
        assert attributes.pop("specversion") == "1.0"
        assert (attributes["inferenceservicename"], attributes["component"]) == ("sums", "predictor")
        assert RFC_3339.fullmatch(attributes["time"])
        assert RFC_3339.fullmatch(attributes["recordedtime"])
        assert attributes["source"]
        assert attributes["metadata"] == "{}"
        assert event.content_type == "application/json"
        by_type.setdefault(attributes["type"], []).append(event)
    (answer,) = by_type["org.kubeflow.serving.inference.response"]
    asked = [event for event in by_type["org.kubeflow.serving.inference.request"] if event.data.get("id") == "r"]
    assert [event.attributes["id"] for event in asked] == [answer.attributes["id"]]
    assert asked[0].data["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": [3] * 16}
    assert answer.data["outputs"][0]["data"] == [6] * 16


def test_a_slow_or_failing_collector_delays_no_answer(models: Path, tmp_path: Path) -> None:
    with EventCollector(hold=True) as collector:
        options = (
            f"--payload-log={collector.url}",
            "--http-workers=0",
            "--shutdown-grace-secs=0",
            "--exit-timeout-secs=1",
        )
        with ServerProcess(models, tmp_path / "log", *options) as server:
            for value in range(20):
                add_sub(server, value)
            until(lambda: collector.requests >= 4, "four events should be under way")
            assert collector.events == []
            collector.status = 400
            collector.release()
            until(lambda: server.metric("trident_payload_log_lost_total", "not_written") > 0)
            collector.status = 200
            add_sub(server, 1, request_id="last")
            until(lambda: any(event.data.get("id") == "last" for event in collector.events))
            text = server.log_text()
            assert "the payload log cannot be written" in text
            collector.status = 503
            add_sub(server, 2)
            assert server.stop() == 0
            assert "the payload log has ended without" in server.log_text()


# --- replay


@pytest.fixture(scope="module")
def two_versions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ServerProcess, ServerProcess]]:
    """A log, the server that made it, and one with a changed model."""
    folder, log = tmp_path_factory.mktemp("versions"), tmp_path_factory.mktemp("log")
    write_model(folder / "old", "add_sub")
    write_model(folder / "new", "add_sub", CHANGED)
    common = ("--http-workers=0", "--engines=1", "--shutdown-grace-secs=0")
    with (
        ServerProcess(folder / "old", log / "old", f"--payload-log={folder / 'payloads'}", *common) as old,
        ServerProcess(folder / "new", log / "new", *common) as new,
    ):
        for value in range(20):
            add_sub(old, value, model="add_sub", request_id=f"n{value}", grpc=value % 2 == 1)
        for step in range(3):
            more = {"sequence_id": 9, "sequence_start": step == 0, "sequence_end": step == 2}
            add_sub(old, 30 + step, model="add_sub", request_id=f"s{step}", **more)
        with pytest.raises(InferenceServerException):
            infer(old, "add_sub", ("INPUT0", "INT32", np.zeros((1, 16), np.int32)), request_id="refused")
        until(lambda: len(lines(folder / "payloads")) == 24)
        shutil.copytree(folder / "payloads", folder / "yesterday")  # a replay is recorded, too
        yield folder / "yesterday", old, new


def replay(log: Path, folder: Path, *options: str, status: int) -> dict[str, Any]:
    assert main(["bench", "--replay", str(log), f"--output={folder}/found", "--speed=4", *options]) == status
    document: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return document


def test_replay_shows_different_answers(
    two_versions: tuple[Path, ServerProcess, ServerProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, old, new = two_versions
    found = replay(log, tmp_path, f"--url={old.address}", status=0)
    assert (found["compared"], found["differences"]) == (24, [])
    (figures,) = found["sides"][0]["models"]
    assert (figures["model"], figures["requests"], figures["errors"]) == ("add_sub", 24, 1)
    assert "0 of 24 answers differ from the log" in capsys.readouterr().out

    found = replay(log, tmp_path, f"--url={new.address}", status=1)
    text = "output 'OUTPUT0' at [0, 0] is 15, expected 14; 16 of 16 elements differ"
    assert [(each["id"], each["difference"]) for each in found["differences"]] == [("n7", text)]
    printed = capsys.readouterr().out
    assert "1 of 24 answers differ from the log" in printed
    assert f"add_sub n7: {text}" in printed

    found = replay(log, tmp_path, f"--url={old.address}", f"--url={new.address}", status=1)
    assert [each["id"] for each in found["differences"]] == ["n7"]
    assert len(found["sides"]) == 2


def test_replay_reports_records_that_it_does_not_send(
    two_versions: tuple[Path, ServerProcess, ServerProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded, old, _ = two_versions
    first, *_ = lines(recorded)
    other = {**first, "model_name": "other"}
    stream = {**first, "responses": first["responses"] * 2}
    left_out = json.loads(json.dumps(first))
    del left_out["request"]["inputs"][0]["data"]
    left_out["request"]["inputs"][0]["left_out"] = "size"
    partly = json.loads(json.dumps(first))
    del partly["responses"][0]["outputs"][0]["data"]
    partly["responses"][0]["outputs"][0]["left_out"] = "redacted"
    wrong = json.loads(json.dumps(first))
    wrong["responses"] = [{"error": "the queue was full"}]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(f"{json.dumps(line)}\n" for line in (first, other, stream, left_out, partly, wrong)))
    found = replay(log, tmp_path, f"--url={old.address}", "add_sub", status=1)
    assert found["compared"] == 3
    assert found["outputs_left_out"] == 1
    assert found["skipped"] == {"streams of responses": 1, "inputs left out: size": 1}
    (difference,) = found["differences"]
    assert difference["difference"] == "is answered; expected was the error: the queue was full"
    assert "Not sent: 1 request (streams of responses)." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "it has no request that can be sent"),
        ('{"id": "a v2 request"}\n', "log.jsonl:1 is not a line of a payload log"),
        ("not JSON\n", "log.jsonl:1 is not a line of a payload log"),
    ],
)
def test_replay_refuses_other_files(
    content: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log.jsonl").write_text(content)
    assert main(["bench", "--replay", str(tmp_path / "log.jsonl"), "--url=127.0.0.1:9"]) != 0
    assert text in "".join(capsys.readouterr())
