"""Steps that are reloaded and unloaded while clients ask, and servers that are killed.

Source: docs/spec/repository.md sections 1.7 and 1.8.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.ensembles.ensemble_models import step, write_ensemble
from tests.contract.lifecycle.changing_models import (
    JSON,
    WIDTH,
    add_scaled,
    factor_in,
    factor_of,
    index,
    load,
    ones_body,
    replace_weights,
)
from tests.contract.servers.processes import engine_of
from tests.contract.servers.server import ServerProcess
from tests.waiting import until

pytestmark = pytest.mark.slow

RELOADS = 12


@pytest.fixture
def server(http_workers: str, tmp_path: Path) -> Iterator[ServerProcess]:
    """`product` runs `a` (2) and then `b` (3); both can be reloaded."""
    repository = tmp_path / "models"
    add_scaled(repository, "a", 2)
    add_scaled(repository, "b", 3)
    write_ensemble(
        repository,
        "product",
        [("INPUT0", "TYPE_FP32", [WIDTH])],
        [("OUTPUT0", "TYPE_FP32", [WIDTH])],
        [step("a", {"INPUT0": "INPUT0"}, {"OUTPUT0": "x"}), step("b", {"INPUT0": "x"}, {"OUTPUT0": "OUTPUT0"})],
    )
    options = ("--shutdown-grace-secs=0", "--model-control-mode=explicit", "--load-model=product")
    with ServerProcess(repository, tmp_path / "log", *options) as running:
        yield running


def test_no_answer_is_wrong_while_a_step_is_reloaded(server: ServerProcess) -> None:
    """The factors grow, so no client may see one after a larger one, nor any that was never served."""
    ended = threading.Event()
    wrong: list[object] = []
    answers = [0] * 4

    def ask(client: int) -> None:
        last = 0.0
        while not ended.is_set():
            status, _, answer = server.request("POST", "/v2/models/product/infer", ones_body(), JSON)
            factor = factor_in(answer) if status == 200 else answer
            if not isinstance(factor, float) or factor < last or factor % 2:
                wrong.append((last, factor))
                return
            last = factor
            answers[client] += 1

    clients = [threading.Thread(target=ask, args=(client,)) for client in range(len(answers))]
    for client in clients:
        client.start()
    try:
        for number in range(RELOADS):
            replace_weights(server.repository / "b", 1, 4.0 + number)
            assert load(server, "b") == (200, "")
        until(lambda: min(answers) > 5)
    finally:
        ended.set()
        for client in clients:
            client.join(30)
    assert wrong == []
    assert factor_of(server, "product") == 2 * (3.0 + RELOADS)
    assert index(server, "product") == [{"version": "1", "state": "READY"}]


@pytest.mark.shapes("front-ends")
def test_an_engine_that_was_killed_loads_the_ensemble_again(server: ServerProcess) -> None:
    assert factor_of(server, "product") == 6
    engine = engine_of(server)
    os.kill(engine, signal.SIGKILL)

    def is_served() -> bool:
        status, _, answer = server.request("POST", "/v2/models/product/infer", ones_body(), JSON)
        return status == 200 and factor_in(answer) == 6

    until(is_served)
    assert engine_of(server) != engine
