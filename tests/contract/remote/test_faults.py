"""A front end dies: the others serve on, and the engine frees what belonged to it. The engine dies: what clients are
answered, and that its models come back.

Source: docs/architecture.md section 5; docs/spec/repository.md section 1.3.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
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
from tests.contract.remote.remote_server import (
    LIMIT_S,
    RemoteServer,
    Traffic,
    open_files,
    private_directory,
    resident_kb,
    shared_memory_of,
)
from tests.contract.servers.session import session_members
from tests.contract.servers.simple_model import IDENTITY, assert_still_serves, link_models
from tests.waiting import until

pytestmark = pytest.mark.slow
LARGE = 4 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteServer]:
    folder = tmp_path_factory.mktemp("faults")
    repository = link_models(folder / "models", "simple", "identity_fp32")
    with RemoteServer(repository, folder) as running:
        yield running


def kill_front_end(server: RemoteServer) -> list[int]:
    """Kill a front end and wait for its replacement. Returns the others."""
    first, *others = server.front_ends
    os.kill(first, signal.SIGKILL)
    until(lambda: first not in session_members(server.process.pid), "it lives on")
    until(lambda: len(server.front_ends) == len(others) + 1, "it is not replaced")
    server.wait_until_all_ready()
    return others


def large_echo(server: RemoteServer) -> None:
    """Send a tensor through shared memory both ways."""
    values = np.arange(LARGE // 4, dtype="<f4").reshape(1, -1)
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": list(values.shape)}
    text = json.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": values.nbytes}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    status, found, answer = server.request("POST", IDENTITY, text + values.tobytes(), headers)
    assert status == 200, answer[:200]
    assert answer[int(found["Inference-Header-Content-Length"]) :] == values.tobytes()


def test_killed_front_end_is_replaced_and_its_memory_is_freed(server: RemoteServer) -> None:
    for _ in range(8):
        large_echo(server)
    engine = server.engine
    files = open_files(engine)
    assert shared_memory_of(engine) == 2
    shared = resident_kb(engine, "RssShmem")
    assert shared >= LARGE >> 10
    for _ in range(2):
        others = kill_front_end(server)
        assert set(others) < set(server.front_ends)
        assert server.engine == engine
        # The replacement has not touched its memory yet.
        until(lambda: shared_memory_of(engine) == 2, f"{shared_memory_of(engine)} blocks")
        until(lambda: open_files(engine) <= files, f"{open_files(engine)} files, {files} before")
    until(lambda: resident_kb(engine, "RssShmem") < shared, "its memory is still there")
    large_echo(server)
    assert_still_serves(server)


def test_every_request_is_answered_while_the_engine_is_killed_again_and_again(tmp_path: Path) -> None:
    """An answer is right or a 503 with the reason. The restarts back off."""
    with RemoteServer(link_models(tmp_path / "models", "simple"), tmp_path) as server, Traffic(server, 16) as traffic:

        def backs_off() -> bool:
            """Only ends soon after the start count, which a slow machine does not reach if it first gets ready."""
            server.kill_engine()
            return server.says("and is restarted in 1 s")

        server.restart_engine()
        until(lambda: server.says("and is restarted in 0 s"), "not restarted at once")
        traffic.wait_for_more()
        until(backs_off, "no back-off")
        server.wait_until_all_ready()
        traffic.wait_for_more()
        assert_still_serves(server)
    assert (traffic.wrong, traffic.lost) == ([], []), str(traffic)
    assert set(traffic.answers) <= {200, 503}, str(traffic)
    # The last one: the new engine is connected and has not begun to load.
    reasons = ("the engine", "is still being loaded", "Server not ready")
    assert all(any(reason in text for reason in reasons) for text in traffic.texts), str(traffic)


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
