"""The engine dies during a load, after changes of its models, and with its directory. What is answered meanwhile, by it
and by front ends that die, is checked in `tests/histories`.

Source: docs/architecture.md section 5; docs/spec/repository.md section 1.3.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.changing_files import found_below
from tests.contract.lifecycle.changing_models import (
    Gate,
    add_scaled,
    base64_of,
    factor_of,
    load,
    scaled,
    unload_and_wait,
)
from tests.contract.remote.remote_server import LIMIT_S, RemoteServer, private_directory
from tests.contract.servers.simple_model import assert_still_serves, link_models
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def explicit(tmp_path: Path) -> Iterator[RemoteServer]:
    repository = link_models(tmp_path / "models", "simple")
    for name in ("first", "second", "third"):
        add_scaled(repository, name, 2.0)
    options = ("--model-control-mode=explicit", "--load-model=simple", "--load-model=first", "--load-model=second")
    with RemoteServer(repository, tmp_path, *options) as server:
        yield server


def test_engine_killed_during_a_load_request_fails_the_request(explicit: RemoteServer) -> None:
    gate = Gate(explicit.repository, "gated", 2.0)
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load, explicit, "gated")
        until(lambda: "gated" in explicit.log_text(), "it is not being loaded")
        explicit.kill_engine()
        status, text = loading.result(LIMIT_S)
    assert (status, text) == (503, "engine unavailable: its process exited during 'load_model'")
    explicit.wait_until_all_ready()
    assert explicit.request("GET", "/v2/models/gated/ready")[0] != 200
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load, explicit, "gated")
        gate.open()
        assert loading.result(LIMIT_S) == (200, "")
    assert factor_of(explicit, "gated") == 2.0


def test_restarted_engine_has_the_models_that_clients_loaded(explicit: RemoteServer) -> None:
    content = base64_of(scaled(7.0).SerializeToString())
    config = '{"backend": "onnxruntime", "max_batch_size": 3}'
    assert load(explicit, "third") == (200, "")
    assert load(explicit, "second", config=config) == (200, "")
    assert load(explicit, "brought", config=config, **{"file:1/model.onnx": content}) == (200, "")
    unload_and_wait(explicit, "first")
    assert load(explicit, "third") == (200, "")
    unload_and_wait(explicit, "third")
    first_loads = explicit.log_text().count("successfully loaded 'first'")
    overrides = set(found_below(explicit.temporary, "trident-override-*"))
    for _ in range(2):
        explicit.restart_engine()
        assert factor_of(explicit, "brought") == 7.0
        assert explicit.json("GET", "/v2/models/second/config")["max_batch_size"] == 3
        assert explicit.json("GET", "/v2/models/brought/config")["max_batch_size"] == 3
        for name in ("first", "third"):
            assert explicit.request("GET", f"/v2/models/{name}/ready")[0] != 200
        assert_still_serves(explicit)
        # The files of the killed engine are gone, and those of the new one exist.
        now = set(found_below(explicit.temporary, "trident-override-*"))
        assert len(now) == len(overrides)
        assert not now & overrides
        overrides = now
    log = explicit.log_text()
    assert log.count("successfully loaded 'first'") == first_loads, "an unloaded model served after the restart"
    assert "could not be restored" not in log


def test_engine_without_its_directory_ends_the_server(tmp_path: Path) -> None:
    """The directory is removed before the engine restarts, so no later attempt can succeed."""
    with RemoteServer(link_models(tmp_path / "models", "simple"), tmp_path) as server:
        shutil.rmtree(private_directory(server))
        os.kill(server.engine, signal.SIGKILL)
        assert server.ended() == 1
        server.was_killed = True
        until(lambda: "Traceback" in server.log_text())
