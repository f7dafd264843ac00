"""deploy/ray on a real local Ray. Ray is not among the packages of the tests: `pip install 'ray[serve,data]'`."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from urllib.error import HTTPError

import numpy as np
import pytest

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


def test_a_data_set_is_mapped_through_a_model() -> None:
    from deploy.ray.batch import mapped

    rows = [{"INPUT0": np.full(16, row, np.int32), "INPUT1": np.ones(16, np.int32)} for row in range(20)]
    made = mapped(ray.data.from_items(rows), MODELS, "simple").take_all()
    assert sorted(row["OUTPUT0"][0] for row in made) == list(range(1, 21))


def test_the_replicas_answer_the_protocol() -> None:
    from ray import serve

    from deploy.ray.application import deployment

    (port,) = free_ports(1)
    serve.start(http_options={"host": HOST, "port": port})
    serve.run(deployment.bind(MODELS))
    url = f"http://{HOST}:{port}/v2/models"
    inputs = [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": ROW} for name in ("INPUT0", "INPUT1")]
    with urllib.request.urlopen(f"{url}/simple/infer", json.dumps({"inputs": inputs}).encode()) as answer:
        assert json.loads(answer.read())["outputs"][0]["data"] == [2 * each for each in ROW]
    with pytest.raises(HTTPError) as refused:
        urllib.request.urlopen(f"{url}/none")
    with refused.value as answer:
        assert (answer.code, answer.headers["Content-Type"]) == (404, "application/json")
    serve.shutdown()
