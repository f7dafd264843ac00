"""The response cache of real servers: in memory, and in a real Redis that servers share.

Source: docs/spec/schedulers.md section 3.7.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton

from tests.contract.ensembles.ensemble_models import step, write_ensemble
from tests.contract.lifecycle.changing_models import BATCHED, add_scaled, factor_of, load, replace_weights
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.redis_server import RedisServer
from tests.waiting import until

CACHED = BATCHED + " response_cache { enable: true }"
PASSWORD = "unseen-7391"


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), "--requirepass", PASSWORD) as running:
        yield running


@pytest.fixture(scope="module")
def servers(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    """Two servers of different shapes, each with its own copy of the models."""
    environment = {**os.environ, "TRITONCACHE_REDIS_PASSWORD": PASSWORD}
    made: list[ServerProcess] = []
    for workers in "02":
        folder = tmp_path_factory.mktemp(f"server{workers}")
        for name in ("shared", "reloaded", "halted"):
            add_scaled(folder / "models", name, 2.0, CACHED)
        tensors = [[(name, "TYPE_FP32", (4,))] for name in ("INPUT0", "OUTPUT0")]
        run = step("reloaded", {"INPUT0": "INPUT0"}, {"OUTPUT0": "OUTPUT0"})
        chain = write_ensemble(folder / "models", "chain", tensors[0], tensors[1], [run])
        with open(chain / "config.pbtxt", "a") as config:
            config.write("response_cache { enable: true }\n")
        options = [
            f"--cache-config=redis,host={HOST},port={redis.port},lookup_timeout=30000,socket_timeout=30000",
            "--model-control-mode=explicit",
            "--load-model=*",
            "--log-verbose=1",
            "--shutdown-grace-secs=0",
            f"--http-workers={workers}",
        ]
        made.append(ServerProcess(folder / "models", folder / "log", *options, environment=environment))
    with made[0], made[1]:
        for server in made:
            until(lambda server=server: metric(server, "trident_response_cache_up") == 1)  # type: ignore[misc]
        yield made


def metric(server: ServerProcess, name: str) -> int:
    page = requests.get(f"http://{HOST}:{server.metrics_port}/metrics", timeout=30).text
    return next(int(line.split(" ")[1]) for line in page.splitlines() if line.startswith(name))


def counts(server: ServerProcess, model: str) -> tuple[int, int, int]:
    """Hits, misses and executions."""
    found = server.json("GET", f"/v2/models/{model}/stats")["model_stats"][0]
    stats = found["inference_stats"]
    return stats["cache_hit"]["count"], stats["cache_miss"]["count"], found["execution_count"]


def is_hit(server: ServerProcess, model: str) -> bool:
    """True once a request is answered from the cache, to which the previous answer is written with a delay."""
    before = counts(server, model)
    factor_of(server, model)
    return counts(server, model)[0] > before[0]


def test_servers_share_cached_answers(servers: list[ServerProcess]) -> None:
    first, second = servers
    assert factor_of(first, "shared") == 2.0
    until(lambda: is_hit(first, "shared"))
    assert factor_of(second, "shared") == 2.0
    assert counts(second, "shared") == (1, 0, 0)


def test_reloaded_weights_do_not_use_old_cached_answers(servers: list[ServerProcess]) -> None:
    second = servers[1]
    for model in ("reloaded", "chain"):
        assert [factor_of(server, model) for server in servers] == [2.0, 2.0]
        until(lambda model=model: is_hit(second, model))  # type: ignore[misc]
    replace_weights(second.repository / "reloaded", 1, 5.0)
    assert load(second, "reloaded") == (200, "")
    for model in ("reloaded", "chain"):
        assert factor_of(second, model) == 5.0
        until(lambda model=model: is_hit(second, model))  # type: ignore[misc]
        assert [factor_of(server, model) for server in servers] == [2.0, 5.0]


def test_password_is_not_exposed(servers: list[ServerProcess]) -> None:
    for server in servers:
        assert PASSWORD not in server.log_text()
        assert PASSWORD not in server.request("GET", "/v2")[2].decode()
        assert PASSWORD not in server.request("GET", "/v2/logging")[2].decode()


# --- in memory, over both protocols


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    for name in ("first", "reloaded"):
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


def test_cache_is_shared_by_http_and_grpc(server: ServerProcess) -> None:
    grpc_address = f"127.0.0.1:{server.grpc_port}"
    values = [1.0, 1.5, 1.0, 1.5]
    assert [infer(triton, server.address, "first", value) for value in values] == [2.0, 3.0, 2.0, 3.0]
    assert [infer(triton_grpc, grpc_address, "first", value) for value in values] == [2.0, 3.0, 2.0, 3.0]
    assert counts(server, "first") == (6, 2, 2)
    counted = server.json("GET", "/v2/models/first/stats")["model_stats"][0]
    assert counted["inference_count"] == counted["inference_stats"]["compute_infer"]["count"] == 2
    assert counted["inference_stats"]["success"]["count"] == 8
    page = requests.get(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=30).text
    assert 'nv_cache_num_hits_per_model{model="first",version="1"} 6' in page
    assert 'nv_cache_num_misses_per_model{model="first",version="1"} 2' in page
    for kind, count in {"hit": 6, "miss": 2}.items():
        name = f"nv_cache_{kind}_summary_per_model"
        assert f'{name}_count{{model="first",version="1"}} {count}' in page
        assert f'{name}{{model="first",version="1",quantile="0.5"}} Nan' not in page
