"""The container as the platform starts it, with the one word `serve`, and the platform's emulator before it."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.server import HTTP_WORKERS, environment_without
from tests.contract.servers.session import TRIDENT, kill_session, start_session
from tests.project import ROOT
from tests.waiting import until

MODELS = ROOT / "deploy" / "models"
# What SageMaker gives a container from SIGTERM on, less a margin of its own.
STOP_LIMIT_S = 25.0
LIMIT_S = 60.0
ROW = ",".join(str(number) for number in range(32))
ANSWER = ",".join([str(2 * n + 16) for n in range(16)] + ["-16"] * 16)


@contextlib.contextmanager
def running(arguments: list[str], variables: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`trident ...` in a session of its own; whoever is left in it at the end is killed."""
    environment = environment_without("SAGEMAKER_", "TRIDENT_", "AWS_") | dict(variables)
    process = start_session([TRIDENT, *arguments], log, env=environment)
    try:
        yield process
    finally:
        kill_session(process)


def ask(port: int, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=LIMIT_S)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def wait_for_ping(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    def answers() -> bool:
        with contextlib.suppress(OSError):
            return ask(port, "GET", "/ping")[0] == 200
        return False

    until(lambda: answers() or process.poll() is not None, log.read_text)
    assert process.poll() is None, log.read_text()


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(STOP_LIMIT_S) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("http_workers")
def test_one_model(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    variables = {
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "simple",
        "TRIDENT_SAGEMAKER_MODEL_ROOT": str(MODELS),
    }
    log = tmp_path / "log"
    with running(["serve"], variables, log) as process:
        wait_for_ping(port, process, log)
        status, answer = ask(port, "POST", "/invocations", f"{ROW}\n{ROW}\n".encode(), Content_Type="text/csv")
        assert status == 200
        assert len(json.loads(answer)["predictions"]) == 2
        status, answer = ask(
            port, "POST", "/invocations", f"{ROW}\n{ROW}\n".encode(), Content_Type="text/csv", Accept="text/csv"
        )
        assert (status, answer.decode()) == (200, f"{ANSWER}\n{ANSWER}\n")
        assert ask(port, "GET", "/v2/health/ready")[0] == 404
        assert ask(port, "GET", "/models")[0] == 404
        status, page = ask(port, "GET", "/metrics")
        assert b'nv_inference_count{model="simple",version="1"} 4' in page
        assert json.loads(ask(port, "GET", "/execution-parameters")[1])["BatchStrategy"] == "MULTI_RECORD"
        stop(process)


@pytest.mark.slow
def test_an_inference_type_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    variables = {
        "SAGEMAKER_TRITON_INFERENCE_TYPE": "generate_stream",
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "simple",
        "TRIDENT_SAGEMAKER_MODEL_ROOT": str(MODELS),
    }
    log = tmp_path / "log"
    with running(["serve"], variables, log) as process:
        assert process.wait(LIMIT_S) == 1
    assert "is 'generate_stream', which this server does not support yet; it takes infer" in log.read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("http_workers")
def test_a_port_outside_of_the_safe_range_ends_the_start(tmp_path: Path) -> None:
    port, other = free_ports(2)
    variables = {
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "SAGEMAKER_SAFE_PORT_RANGE": f"{port}-{port}",
        "SAGEMAKER_TRITON_ALLOW_METRICS": "true",
        "SAGEMAKER_TRITON_METRICS_PORT": str(other),
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "simple",
        "TRIDENT_SAGEMAKER_MODEL_ROOT": str(MODELS),
    }
    log = tmp_path / "log"
    with running(["serve"], variables, log) as process:
        assert process.wait(LIMIT_S) == 1
    assert f"at port {other}, allowed port range is [{port}, {port}]" in log.read_text()


@pytest.mark.slow
def test_many_models_take_no_front_ends_and_the_start_says_why(tmp_path: Path) -> None:
    variables = {"SAGEMAKER_MULTI_MODEL": "true", HTTP_WORKERS: "2"}
    log = tmp_path / "log"
    with running(["serve"], variables, log) as process:
        assert process.wait(LIMIT_S) == 1
    assert "--http-workers" in log.read_text()
    assert "measures the memory of the process that has the models: use 0 or auto" in log.read_text()


@pytest.mark.slow
def test_the_life_of_many_models(tmp_path: Path) -> None:
    root = tmp_path / "models"
    for name in ("aaa", "bbb"):
        shutil.copytree(MODELS / "simple", root / name / "model")
    (port,) = free_ports(1)
    variables = {
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "SAGEMAKER_MULTI_MODEL": "true",
        "TRIDENT_SAGEMAKER_MODELS_ROOT": str(root),
    }
    log = tmp_path / "log"

    def load(name: str) -> int:
        body = json.dumps({"model_name": name, "url": f"{root}/{name}/model"}).encode()
        return ask(port, "POST", "/models", body, Content_Type="application/json")[0]

    with running(["serve"], variables, log) as process:
        wait_for_ping(port, process, log)
        assert [load("aaa"), load("bbb"), load("aaa")] == [200, 200, 409]
        page = json.loads(ask(port, "GET", "/models?limit=1")[1])
        assert page["models"] == [{"modelName": "aaa", "modelUrl": f"{root}/aaa/model"}]
        rest = json.loads(ask(port, "GET", f"/models?limit=1&next_page_token={page['nextPageToken']}")[1])
        assert [model["modelName"] for model in rest["models"]] == ["bbb"]
        status, answer = ask(
            port, "POST", "/models/bbb/invoke", ROW.encode(), Content_Type="text/csv", Accept="text/csv"
        )
        assert (status, answer.decode()) == (200, f"{ANSWER}\n")
        assert ask(port, "DELETE", "/models/bbb")[0] == 200
        assert ask(port, "GET", "/models/bbb")[0] == 404
        assert ask(port, "POST", "/models/bbb/invoke", ROW.encode(), Content_Type="text/csv")[0] == 404
        assert load("..") == 400
        stop(process)


@pytest.mark.slow
def test_no_room_for_another_model_is_a_507(tmp_path: Path) -> None:
    root = tmp_path / "models"
    shutil.copytree(MODELS / "simple", root / "aaa" / "model")
    (port,) = free_ports(1)
    variables = {
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "SAGEMAKER_MULTI_MODEL": "true",
        "TRIDENT_SAGEMAKER_MODELS_ROOT": str(root),
        "TRIDENT_SAGEMAKER_MEMORY_LIMIT_MB": "1",
    }
    log = tmp_path / "log"
    with running(["serve"], variables, log) as process:
        wait_for_ping(port, process, log)
        body = json.dumps({"model_name": "aaa", "url": f"{root}/aaa/model"}).encode()
        status, answer = ask(port, "POST", "/models", body, Content_Type="application/json")
        assert status == 507, answer
        assert ask(port, "GET", "/ping")[0] == 200
        assert json.loads(ask(port, "GET", "/models")[1])["models"] == []
        stop(process)


@pytest.mark.slow
def test_the_emulator_serves_the_real_sdk(tmp_path: Path) -> None:
    archive = tmp_path / "model.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(MODELS / "simple", "simple")
    (port,) = free_ports(1)
    log = tmp_path / "log"
    with running(["emulate", "sagemaker", str(archive), f"--port={port}"], {}, log) as process:
        until(lambda: "the runtime API is at" in log.read_text() or process.poll() is not None, log.read_text)
        assert process.poll() is None, log.read_text()
        client = boto3.client(
            "sagemaker-runtime",
            endpoint_url=f"http://{HOST}:{port}",
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="any",
        )
        answer = client.invoke_endpoint(EndpointName="any", ContentType="text/csv", Accept="text/csv", Body=ROW)
        assert (answer["ContentType"], answer["Body"].read().decode()) == ("text/csv", f"{ANSWER}\n")
        with pytest.raises(ClientError, match="expected 32 columns") as refused:
            client.invoke_endpoint(EndpointName="any", ContentType="text/csv", Body="1,2")
        assert refused.value.response["OriginalStatusCode"] == 400
        client.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0, log.read_text()
