"""How a container starts, with `serve` as its only argument."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.contract.sagemaker.sagemaker_archives import CSV
from tests.contract.sagemaker.sagemaker_container import LIMIT_S, SageMakerContainer, platform_environment
from tests.contract.servers.ports import free_ports
from tests.contract.servers.session import TRIDENT, kill_session, start_session
from tests.project import ROOT

pytestmark = pytest.mark.slow

VARIABLES = {
    "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "simple",
    "TRIDENT_SAGEMAKER_MODEL_ROOT": str(ROOT / "deploy" / "models"),
}
ROW = ",".join(str(number) for number in range(32))
ANSWER = ",".join([str(2 * n + 16) for n in range(16)] + ["-16"] * 16)


@pytest.mark.usefixtures("http_workers")
@pytest.mark.shapes("one-process", "front-ends", "two-engines")
def test_container_of_one_model_serves(tmp_path: Path) -> None:
    body = f"{ROW}\n{ROW}\n".encode()
    with SageMakerContainer(tmp_path / "log", **VARIABLES) as container:
        answer = container.invoke(body, Content_Type=CSV)
        assert answer.status == 200
        assert len(json.loads(answer.body)["predictions"]) == 2
        answer = container.invoke(body, Content_Type=CSV, Accept=CSV)
        assert (answer.status, answer.body.decode()) == (200, f"{ANSWER}\n{ANSWER}\n")
        assert container.ask("GET", "/v2/health/ready").status == 404
        assert container.ask("GET", "/models").status == 404
        assert b'nv_inference_count{model="simple",version="1"} 4' in container.ask("GET", "/metrics").body
        assert json.loads(container.ask("GET", "/execution-parameters").body)["BatchStrategy"] == "MULTI_RECORD"


def test_port_outside_the_safe_range_ends_the_start(tmp_path: Path) -> None:
    port, other = free_ports(2)
    variables = VARIABLES | {
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "SAGEMAKER_SAFE_PORT_RANGE": f"{port}-{port}",
        "SAGEMAKER_TRITON_ALLOW_METRICS": "true",
        "SAGEMAKER_TRITON_METRICS_PORT": str(other),
    }
    process = start_session([TRIDENT, "serve"], tmp_path / "log", env=platform_environment(variables))
    try:
        assert process.wait(LIMIT_S) == 1
    finally:
        kill_session(process)
    assert f"at port {other}, allowed port range is [{port}, {port}]" in (tmp_path / "log").read_text()
