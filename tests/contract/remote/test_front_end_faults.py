"""A front end dies: the others serve on, and the engine frees what belonged to it.

Source: docs/architecture.md section 5.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

from tests.contract.remote.remote_server import (
    RemoteServer,
    Traffic,
    open_files,
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
    folder = tmp_path_factory.mktemp("front-ends")
    with RemoteServer(link_models(folder / "models", "simple", "identity_fp32"), folder) as running:
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


def test_requests_of_other_front_ends_are_not_disturbed(server: RemoteServer) -> None:
    """Only connections to the killed front end may be lost."""
    with Traffic(server, 16) as traffic:
        kill_front_end(server)
        traffic.wait_for_more()
    assert set(traffic.answers) == {200}, str(traffic)
    assert traffic.wrong == [], str(traffic)
    assert all(isinstance(error, (ConnectionError, http.client.HTTPException)) for error in traffic.lost), str(traffic)
    # Two for each client: the pending request, and one sent on a connection that nobody had accepted yet.
    assert len(traffic.lost) <= 2 * 16, str(traffic)
