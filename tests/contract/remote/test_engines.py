"""Two engines behind two front ends: one that cannot start again, a load whose front end dies, and a stop.

Source: docs/processes.md "Several engines".
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.contract.lifecycle.changing_models import Gate, add_scaled, factor_of, load
from tests.contract.remote.remote_server import LIMIT_S, RemoteServer, Traffic
from tests.contract.servers.processes import engines_of, front_ends_of
from tests.contract.servers.session import session_members
from tests.contract.servers.simple_model import link_models
from tests.waiting import until

pytestmark = pytest.mark.slow


def test_other_engine_serves_while_one_cannot_restart(tmp_path: Path) -> None:
    """The restart is repeated after growing pauses until it succeeds."""
    folder = tmp_path / "models"
    add_scaled(folder, "given", 2.0)
    weights = folder / "given" / "1" / "model.onnx"
    whole = weights.read_bytes()
    with RemoteServer(folder, tmp_path, "--engines=2") as server:
        weights.unlink()
        weights.write_bytes(b"no model")
        os.kill(engines_of(server)[1], signal.SIGKILL)
        until(lambda: server.log_text().count("the other engines serve on") >= 2, server.log_text)
        assert server.is_ready()
        assert {factor_of(server, "given") for _ in range(10)} == {2.0}
        weights.unlink()
        weights.write_bytes(whole)
        until(lambda: server.log_text().count("successfully loaded 'given'") == 3, server.log_text)
        assert {factor_of(server, "given") for _ in range(10)} == {2.0}


def test_load_of_a_dead_front_end_is_consistent_across_engines(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    add_scaled(folder, "given", 2.0)
    gate = Gate(folder, "gated", 3.0)
    options = ["--engines=2", "--model-control-mode=explicit", "--load-model=given"]
    with RemoteServer(folder, tmp_path, *options) as server, ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load, server, "gated")
        until(lambda: server.log_text().count("loading: gated:1") == 1, server.log_text)
        for front_end in front_ends_of(server):
            os.kill(front_end, signal.SIGKILL)
        assert isinstance(loading.exception(LIMIT_S), (OSError, HTTPException))
        # The load of the one engine, and that of both. Opening the gate changes it, so the one loads it again.
        for loads in (1, 2, 3):
            gate.open()
            until(lambda loads=loads: server.log_text().count("successfully loaded 'gated'") == loads, server.log_text)  # type: ignore[misc]
        server.wait_until_all_ready()
        assert {factor_of(server, "gated") for _ in range(20)} == {3.0}


@pytest.mark.parametrize(("number", "to_all"), [(signal.SIGTERM, False), (signal.SIGINT, True)], ids=["stop", "Ctrl-C"])
def test_stop_answers_requests_in_both_engines(number: int, to_all: bool, tmp_path: Path) -> None:
    with RemoteServer(link_models(tmp_path / "models", "simple"), tmp_path, "--engines=2") as server:
        with Traffic(server, 4) as traffic:
            main = server.process.pid
            for process in session_members(main) if to_all else [main]:
                with suppress(ProcessLookupError):
                    os.kill(process, number)
            assert server.ended() == 0
        assert set(traffic.answers) == {200}, str(traffic)
        with suppress(OSError):
            server.request("GET", "/v2/health/live")
