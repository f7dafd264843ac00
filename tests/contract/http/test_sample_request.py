"""Each form of a request to copy is run as it is printed, against the server that printed it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.servers.server import ServerProcess
from tests.project import ROOT
from tests.unit import onnx_models
from tests.unit.onnx_serving import identity_config

pytestmark = pytest.mark.slow

# What the answer to each form has somewhere.
ANSWERS = {"simple": "2", "running_mean": "1", "stream_words": "text", "half": "1", "wide": "1"}
REFUSED = {"stream_words": {"curl-binary", "http"}, "half": {"curl"}}


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = tmp_path_factory.mktemp("models")
    for path in ("models/simple", "examples/running_mean", "examples/stream_words"):
        (models / Path(path).name).symlink_to(ROOT / "deploy" / path)
    onnx_models.write_version(onnx_models.identity("FP16"), models, "half", identity_config("FP16", (-1,)))
    onnx_models.write_version(
        onnx_models.identity("FP32", ("batch", 5000)), models, "wide", identity_config("FP32", (5000,))
    )
    with ServerProcess(models, tmp_path_factory.mktemp("server") / "log", "--shutdown-grace-secs=0") as running:
        yield running


def text_of(server: ServerProcess, model: str, form: str) -> str:
    status, headers, body = server.request("GET", f"/v2/models/{model}/request?form={form}")
    assert (status, headers["Content-Type"]) == (200, "text/plain"), body
    return body.decode()


@pytest.mark.parametrize("model", ANSWERS)
@pytest.mark.parametrize("form", ["curl", "curl-binary", "http", "grpc"])
def test_a_printed_request_is_answered(
    form: str, model: str, server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = server.json("GET", f"/v2/models/{model}/request")
    refused = {each["name"] for each in shown["forms"] if "unavailable" in each}
    assert refused == REFUSED.get(model, set())
    if form in refused:
        assert server.request("GET", f"/v2/models/{model}/request?form={form}")[0] == 400
        return
    text = text_of(server, model, form)
    if form.startswith("curl"):
        line = text.replace("curl -s", "curl --fail-with-body -s", 1)
        done = subprocess.run(["sh", "-c", line], capture_output=True, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, b""), done.stdout
        answer = tmp_path / "answer.bin"
        printed = (answer.read_bytes() if answer.exists() else done.stdout).decode("latin-1")
    else:
        exec(compile(text, form, "exec"), {})
        printed = capsys.readouterr().out
    assert ("\x00<" if "answer.bin" in text else ANSWERS[model]) in printed


@pytest.mark.parametrize("model", ["simple", "wide", "half"])
def test_the_file_for_perf_analyzer_has_a_request(model: str, server: ServerProcess) -> None:
    """Each step has the inputs of one item, in a shape without the batch dimension."""
    (step,) = json.loads(text_of(server, model, "perf-analyzer"))["data"]
    inputs: list[dict[str, Any]] = server.json("GET", f"/v2/models/{model}/request")["inputs"]
    assert [each["name"] for each in inputs] == list(step)
    assert [[1, *step[each["name"]]["shape"]] for each in inputs] == [each["shape"] for each in inputs]
    if model == "simple":
        document = {"inputs": [{**each, "data": step[each["name"]]["content"]} for each in inputs]}
        assert server.json("POST", "/v2/models/simple/infer", document)["outputs"][0]["data"] == [2] * 16
    else:
        assert list(step["INPUT0"]["content"]) == ["b64"]


def test_the_address_is_that_of_the_client(server: ServerProcess) -> None:
    path = "/v2/models/simple/request"
    for query, host, expected in (
        ("", "models.example:80", "http://models.example:80/v2/models/simple/infer"),
        ("", "[::1]:8000", "'http://[::1]:8000/v2/models/simple/infer'"),
        ("&url=https://gate.example/triton/", "x", "https://gate.example/triton/v2/models/simple/infer"),
        ("", "x;touch y", f"http://localhost:{server.http_port}/v2/models/simple/infer"),
    ):
        status, _, body = server.request("GET", f"{path}?form=curl{query}", headers={"Host": host})
        assert (status, body.decode().split()[2]) == (200, expected)
    assert server.request("GET", f"{path}?form=curl&url=http://x'$(y)")[0] == 400
    assert server.request("GET", f"{path}?form=nothing")[0] == 400
    given = server.json("GET", f"{path}?shape=INPUT0:2,16&shape=INPUT1:2,16")
    assert [each["shape"] for each in given["inputs"]] == [[2, 16], [2, 16]]
