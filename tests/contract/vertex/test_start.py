"""How a container starts: its variables, its artifacts and its default model.

Source: docs/spec/vertex.md sections A1 and A2, B1 and B2, C.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contract.lifecycle.changing_models import add_scaled, heavy
from tests.contract.repository.fake_storage import Drip, FaultProxy
from tests.contract.repository.gcs_emulator import GcsEmulator
from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.server import ServerProcess
from tests.contract.vertex.vertex_container import HEALTH, PREDICT, VertexContainer
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("http_workers")]

INSTANCES = {"instances": [[1, 2, 3, 4]]}


@contextmanager
def serving(folder: Path, *arguments: str, **variables: str) -> Iterator[VertexContainer]:
    """A container of the model `cat`, which multiplies by 3."""
    add_scaled(folder / "models", "cat", 3)
    with VertexContainer(folder, folder / "models", *arguments, **variables) as container:
        yield container


def assert_serves(container: VertexContainer, factor: float = 3, path: str = PREDICT) -> None:
    assert container.predictions([[1, 2, 3, 4]], path) == [[factor * n for n in (1, 2, 3, 4)]]


# --- the variables


def test_container_starts_with_the_platforms_variables(tmp_path: Path) -> None:
    with serving(tmp_path) as container:
        assert container.accepts()
        connection = http.client.HTTPConnection(HOST, container.port, timeout=60)
        for _ in range(3):  # a probe may keep its connection
            connection.request("GET", HEALTH)
            response = connection.getresponse()
            assert (response.status, response.read()) == (200, b"")
        connection.close()
        assert_serves(container)
        # The tables of the start say which variables were read. They are logged a moment after the container is ready.
        until(lambda: "Started Vertex AI HTTPService" in container.log_text(), container.log_text)
        log = container.log_text()
        assert "a rehearsal of" not in log
        for name in ("AIP_MODE", "AIP_PREDICT_ROUTE", "AIP_HEALTH_ROUTE", "AIP_STORAGE_URI", "AIP_HTTP_PORT"):
            assert name in log
        assert "Started HTTPService" not in log  # the plain port is closed
        assert container.ask("GET", "/metrics", port=container.metrics_port).status == 200


def test_model_in_the_predict_route_becomes_the_default(tmp_path: Path) -> None:
    add_scaled(tmp_path / "models", "dog", 5)
    with serving(tmp_path, AIP_PREDICT_ROUTE="/v2/models/dog/infer") as container:
        assert_serves(container, 5, "/v2/models/dog/infer")
        item = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        for model, factor in (("cat", 3), ("dog", 5)):
            answer = container.post({"inputs": [item]}, f"/v2/models/{model}/infer")
            assert answer.document["outputs"][0]["data"] == [factor * n for n in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("arguments", "variables", "text"),
    [
        ([], {"AIP_PREDICT_ROUTE": "predict"}, "the variable AIP_PREDICT_ROUTE is 'predict'"),
        ([], {"AIP_STORAGE_URI": ""}, "--model-repository must be specified"),
        ([], {"AIP_STORAGE_URI": "FOLDER/other"}, "other: it holds 'saved_model.pb'"),
        (["--vertex-ai-default-model=dog"], {}, "'dog', which is not among the loaded models: cat"),
    ],
    ids=["route", "no artifacts", "no model", "default model"],
)
def test_invalid_deployment_aborts_startup(
    tmp_path: Path, arguments: list[str], variables: dict[str, str], text: str
) -> None:
    add_scaled(tmp_path / "models", "cat", 3)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "saved_model.pb").touch()
    given = {name: value.replace("FOLDER", str(tmp_path)) for name, value in variables.items()}
    container = VertexContainer(tmp_path, tmp_path / "models", *arguments, **given)
    container.start()
    status, log = container.wait_for_end()
    assert status == 1
    assert text in log
    assert "Traceback" not in log


# --- without the platform


def test_plain_server_opens_a_vertex_port(tmp_path: Path) -> None:
    add_scaled(tmp_path / "models", "cat", 3)
    (port,) = free_ports(1)
    options = ["--allow-vertex-ai=true", f"--vertex-ai-port={port}", "--vertex-ai-thread-count=2"]
    with ServerProcess(tmp_path / "models", tmp_path / "log", "--shutdown-grace-secs=0", *options) as server:
        base = "/v1/endpoints/0/deployedModels/0"
        assert server.request("GET", base, port=port)[0] == 200
        body = json.dumps(INSTANCES).encode()
        json_type = {"Content-Type": "application/json"}
        status, _, answer = server.request("POST", f"{base}:predict", body, json_type, port=port)
        assert (status, json.loads(answer)) == (200, {"predictions": [[3, 6, 9, 12]]})
        assert server.request("POST", f"{base}:predict", body, json_type)[0] == 404
        assert server.request("POST", "/v2/repository/index")[0] == 200  # which the Vertex port does not serve
        assert server.request("POST", "/v2/repository/index", port=port)[0] == 404


# --- artifacts in Google's storage, behind a proxy that injects faults


# The platform copies artifacts to a bucket with such a name.
BUCKET = "caip-tenant-0123abcd"


def test_slow_download_is_reported_by_the_probe(tmp_path: Path) -> None:
    """The liveness probe is a connection, four times in 40 seconds: a longer download must not fail it."""
    drip = Drip(after=1 << 20)
    with GcsEmulator() as storage, FaultProxy(storage.endpoint) as proxy:
        # Two parts, each longer than what arrives before the pause.
        storage.put(BUCKET, "5/model.onnx", heavy(3, 12).SerializeToString())
        proxy.inject(drip, where="/download/")
        variables = {"STORAGE_EMULATOR_HOST": proxy.endpoint}
        with VertexContainer(tmp_path, f"gs://{BUCKET}/5", ready=False, **variables) as container:
            assert drip.paused.wait(60)
            until(lambda: downloaded(container) >= 1 << 20, container.log_text)
            for _ in range(5):
                assert container.accepts()
                answer = container.health()
                assert answer.status == 503
                phase = answer.document
                assert (phase["phase"], phase["model"], phase["loaded"], phase["total"]) == ("loading", "model", 0, 1)
                assert phase["download"]["bytes_total"] > 8 << 20
            answer = container.post(INSTANCES)
            assert (answer.status, answer.error) == (503, "the models are still being loaded")
            assert container.redirected("v2/health/live").status == 200
            drip.release()
            until(lambda: container.health_status() == 200, container.log_text)
            assert_serves(container)


def downloaded(container: VertexContainer) -> int:
    """The bytes of the progress that the health probe reports."""
    found: int = container.health().document.get("download", {}).get("bytes_done", 0)
    return found
