"""The response cache of a real server, over both protocols.

Source: docs/spec/schedulers.md section 3.7.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton

from tests.contract.lifecycle.changing_models import BATCHED, add_scaled, factor_of, load, replace_weights
from tests.contract.servers.server import ServerProcess

CACHED = BATCHED + " response_cache { enable: true }"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def server(repository: Path, http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    for name in ("first", "second", "reloaded"):
        add_scaled(repository, name, 2.0, CACHED)
    latencies = "--metrics-config=summary_latencies=true"
    options = ["--cache-config=local,size=100000", latencies, "--model-control-mode=explicit", "--load-model=*"]
    log = tmp_path_factory.mktemp("server") / "log"
    with ServerProcess(repository, log, "--shutdown-grace-secs=0", *options) as running:
        yield running


def infer(module: Any, address: str, model: str, value: float) -> float:
    client = module.InferenceServerClient(address)
    try:
        tensor = module.InferInput("INPUT0", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.full((1, 4), value, np.float32))
        result = client.infer(model, [tensor])
        return float(result.as_numpy("OUTPUT0")[0, 0])
    finally:
        client.close()


def statistics(server: ServerProcess, model: str) -> dict[str, Any]:
    found: dict[str, Any] = server.json("GET", f"/v2/models/{model}/stats")["model_stats"][0]
    return found


def test_the_answer_to_one_protocol_serves_the_other(server: ServerProcess) -> None:
    grpc_address = f"127.0.0.1:{server.grpc_port}"
    values = [1.0, 1.5, 1.0, 1.5]
    assert [infer(triton, server.address, "first", value) for value in values] == [2.0, 3.0, 2.0, 3.0]
    assert [infer(triton_grpc, grpc_address, "first", value) for value in values] == [2.0, 3.0, 2.0, 3.0]
    counted = statistics(server, "first")
    assert (counted["execution_count"], counted["inference_count"]) == (2, 2)
    counts = {name: counted["inference_stats"][name]["count"] for name in ("success", "cache_hit", "cache_miss")}
    assert counts == {"success": 8, "cache_hit": 6, "cache_miss": 2}
    assert counted["inference_stats"]["compute_infer"]["count"] == 2
    page = requests.get(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=30).text
    assert 'nv_cache_num_hits_per_model{model="first",version="1"} 6' in page
    assert 'nv_cache_num_misses_per_model{model="first",version="1"} 2' in page
    for kind, count in {"hit": 6, "miss": 2}.items():
        name = f"nv_cache_{kind}_summary_per_model"
        assert f'{name}_count{{model="first",version="1"}} {count}' in page
        assert f'{name}{{model="first",version="1",quantile="0.5"}} Nan' not in page


def test_a_reload_forgets_the_answers_of_the_version_before(server: ServerProcess, repository: Path) -> None:
    assert [factor_of(server, "reloaded") for _ in range(2)] == [2.0, 2.0]
    replace_weights(repository / "reloaded", 1, 5.0)
    load(server, "reloaded")
    assert [factor_of(server, "reloaded") for _ in range(2)] == [5.0, 5.0]
    assert statistics(server, "reloaded")["inference_stats"]["cache_hit"]["count"] == 1
