"""The front ends of a server act as one: counts, models and queues are common to all.

Each front end is asked separately. The same must hold for a server in one process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.contract.lifecycle.changing_models import BATCHED, add_scaled, load, ones_body, unload_and_wait
from tests.contract.remote.remote_server import Client
from tests.contract.servers.processes import from_each, front_ends_of, only, stopped
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.session import session_members
from tests.contract.servers.simple_model import PATH, good_body, link_models
from tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("http_workers"),
    pytest.mark.shapes("one-process", "front-ends"),
]

SCALED = "scaled"
INFER = f"/v2/models/{SCALED}/infer"
EXPLICIT = ("--model-control-mode=explicit", "--load-model=*", "--shutdown-grace-secs=0")


@contextmanager
def serving(folder: Path, *options: str, config: str = BATCHED) -> Iterator[ServerProcess]:
    """A server of `simple` and of a model that doubles."""
    repository = link_models(folder / "models", "simple")
    add_scaled(repository, SCALED, 2.0, config)
    with ServerProcess(repository, folder / "log", *options) as running:
        yield running


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("front_ends"), *EXPLICIT) as running:
        yield running


class Caller(Client):
    """A connection to one front end."""

    def __init__(self, server: ServerProcess, front_end: int) -> None:
        super().__init__(server)
        with only(server, front_end):
            assert self.ask("GET", "/v2/health/live")[0] == 200


# --- counts


def metadata_requests(server: ServerProcess) -> float:
    return server.metric("flask_http_request_duration_seconds_count", 'route="/v2"', 'status="200"')


def metadata_responses(server: ServerProcess) -> float:
    return server.metric("trident_http_responses_total", 'route="/v2"', 'status="200"')


def test_every_page_has_the_counts_of_all_front_ends(server: ServerProcess) -> None:
    def counts() -> tuple[float, ...]:
        (statistics,) = server.json("GET", "/v2/models/simple/stats")["model_stats"]
        return (
            metadata_requests(server),
            server.metric("flask_http_request_total", 'status="404"'),
            metadata_responses(server),
            server.metric("trident_http_responses_total", 'route=""', 'status="404"'),
            server.metric("trident_http_responses_total", 'route="/v2/models/<model>/infer"', 'status="200"'),
            server.metric("nv_inference_request_success", 'model="simple"'),
            server.metric("nv_inference_count", 'model="simple"'),
            statistics["inference_count"],
        )

    asked = 0
    before = counts()
    for number, front_end in enumerate(front_ends_of(server), 1):
        with only(server, front_end):
            for _ in range(10 * number):
                assert server.request("GET", "/v2")[0] == 200
                assert server.request("GET", "/v2/nothing")[0] == 404
                assert server.request("POST", PATH, good_body())[0] == 200
        asked += 10 * number
    after = tuple(count + asked for count in before)
    assert from_each(server, counts) == [after] * len(front_ends_of(server))


@pytest.mark.shapes("front-ends")
def test_counts_of_a_front_end_survive_its_death(server: ServerProcess) -> None:
    """In one process the counts go with the engine's."""
    front_ends = front_ends_of(server)
    before = metadata_requests(server)
    with only(server, front_ends[0]):
        for _ in range(10):
            assert server.request("GET", "/v2")[0] == 200
    os.kill(front_ends[0], signal.SIGKILL)
    until(lambda: front_ends[0] not in session_members(server.process.pid), "it is still there")
    until(lambda: len(front_ends_of(server)) == len(front_ends), "it is not replaced")
    # The new front end is ready when it has found the engine.
    until(lambda: from_each(server, lambda: server.request("GET", "/v2/health/ready")[0]) == [200, 200], "not ready")
    assert from_each(server, lambda: metadata_requests(server)) == [before + 10] * 2
    assert from_each(server, lambda: metadata_responses(server)) == [before + 10] * 2


# --- models


def test_change_by_one_front_end_is_visible_in_all(server: ServerProcess) -> None:
    """Even a front end that was stopped meanwhile must not show the old state after the change was answered."""
    with ExitStack() as stack:
        callers = [stack.enter_context(Caller(server, each)) for each in front_ends_of(server)]
        for number, front_end in enumerate(front_ends_of(server)):
            caller = callers[number]

            def after(change: Callable[[], Any], caller: Caller = caller, front_end: int = front_end) -> list[int]:
                """The statuses that a front end answers when it was stopped during the change."""
                statuses = []
                for method, path, body in (
                    ("GET", f"/v2/models/{SCALED}/ready", None),
                    ("POST", INFER, ones_body()),
                    ("GET", f"/v2/models/{SCALED}", None),
                ):
                    with stopped([front_end] if len(callers) > 1 else []):
                        change()
                        caller.send(method, path, body)
                    statuses.append(caller.answer()[0])
                return statuses

            assert after(lambda: None) == [200] * 3
            unloaded = after(lambda: unload_and_wait(server, SCALED))
            assert all(400 <= status < 500 for status in unloaded), unloaded
            assert after(lambda: load(server, SCALED)) == [200] * 3
