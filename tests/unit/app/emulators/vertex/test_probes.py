from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.app.emulators.scripted_container import HOST, LIMIT_S, Answer, Call, ScriptedContainer
from tests.waiting import until
from trident.app.emulators.container import ContainerClient
from trident.app.emulators.report import BreachReport
from trident.app.emulators.vertex.limits import PlatformLimits
from trident.app.emulators.vertex.probes import Probes

QUICK = PlatformLimits(deployment_s=0.2, health_interval_s=0.005, liveness_interval_s=0.02)
PATIENT = PlatformLimits(health_interval_s=0.005)
HEALTH = "/v1/endpoints/12/deployedModels/34"


class Machine:
    """A machine whose container "runs" until the test sets its exit status."""

    def __init__(self) -> None:
        self.exit_status: int | None = None
        self.restarts = 0
        self.on_restart: Callable[[], None] = lambda: None

    def restart(self, within_s: float, report: BreachReport) -> None:
        self.exit_status = None
        self.restarts += 1
        self.on_restart()


class Probed:
    def __init__(self, port: int, limits: PlatformLimits) -> None:
        self.machine = Machine()
        self.report = BreachReport()
        self.said: list[str] = []
        client = ContainerClient(port, limits)
        self.probes = Probes(self.machine, client, port, HEALTH, limits, self.report, self.said.append)

    @property
    def breaches(self) -> list[str]:
        return list(self.report.breaches)

    def is_ready(self, is_stopped: Callable[[], bool] = lambda: False) -> bool:
        return self.probes.wait_until_ready(is_stopped)

    def watch_until(self, condition: Callable[[], Any]) -> None:
        stopped = threading.Event()
        thread = threading.Thread(target=self.probes.watch, args=[stopped])
        thread.start()
        try:
            until(condition)
        finally:
            stopped.set()
            thread.join()


class Script:
    """A container that answers every probe with `answer`."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.served = ScriptedContainer(self._answer)

    def _answer(self, call: Call) -> Answer:
        return self.answer


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script()
    with made.served:
        yield made


@pytest.fixture
def silent_port() -> Iterator[int]:
    with socket.socket() as held:  # no process listens on it, and no other can bind it
        held.bind((HOST, 0))
        yield held.getsockname()[1]


def test_a_200_on_the_health_route_means_healthy(script: Script) -> None:
    probed = Probed(script.served.port, PATIENT)
    assert not probed.probes.has_traffic
    script.answer = Answer(200, b"whatever the body says")
    assert probed.is_ready()
    assert probed.probes.has_traffic
    assert script.served.paths() == [f"GET {HEALTH}"]
    assert probed.breaches == []


@pytest.mark.slow
@pytest.mark.parametrize("status", [503, 204, 404])
def test_another_status_is_unhealthy(script: Script, status: int) -> None:
    script.answer = Answer(status, b"" if status == 204 else b"loading")
    probed = Probed(script.served.port, QUICK)
    assert not probed.is_ready()
    (breach,) = probed.breaches
    assert breach.startswith(
        f"the container was not healthy 200 ms after its start: at the last probe it answered {status}"
    )
    assert not probed.probes.has_traffic


def test_a_container_that_does_not_listen_is_restarted_and_reported(silent_port: int) -> None:
    probed = Probed(silent_port, QUICK)
    assert not probed.is_ready(lambda: probed.machine.restarts > 0)
    (breach,) = probed.breaches
    assert breach.startswith(f"liveness: the container did not listen on port {silent_port} in 4 tries 20 ms apart")
    assert breach.endswith("and was started again")


def test_a_container_that_never_listens_runs_out_of_time(silent_port: int) -> None:
    probed = Probed(silent_port, QUICK)
    assert not probed.is_ready()
    assert probed.breaches[-1].endswith(f"at the last probe it did not listen on port {silent_port}")


def test_a_listening_container_is_not_restarted_during_its_load(script: Script) -> None:
    script.answer = Answer(503)
    probed = Probed(script.served.port, PlatformLimits(liveness_interval_s=0.0, deployment_s=0.3))
    assert not probed.is_ready()
    assert probed.machine.restarts == 0


def test_a_container_that_ends_before_it_is_healthy_fails_the_deployment(silent_port: int) -> None:
    probed = Probed(silent_port, PATIENT)
    probed.machine.exit_status = 3
    assert not probed.is_ready()
    assert probed.breaches == ["the container ended by itself, with status 3"]
    assert probed.machine.restarts == 0


def test_stopping_ends_the_wait_for_the_start(silent_port: int) -> None:
    probed = Probed(silent_port, PATIENT)
    assert not probed.is_ready(lambda: True)
    assert probed.breaches == []


def test_four_failed_probes_end_the_traffic_and_a_good_one_restores_it(script: Script) -> None:
    probed = Probed(script.served.port, PATIENT)
    assert probed.is_ready()
    script.answer = Answer(503, b"busy")
    probed.watch_until(lambda: not probed.probes.has_traffic)
    assert len(script.served.calls) >= 5
    assert probed.breaches == [
        "health: 4 failed probes in a row, so the container got no more calls: at the last one it answered 503: busy"
    ]
    script.answer = Answer()
    probed.watch_until(lambda: probed.probes.has_traffic)
    assert probed.said == ["the container is healthy again and gets calls"]
    assert probed.machine.restarts == 0
    assert len(probed.breaches) == 1


def test_three_failed_probes_do_not_end_the_traffic(script: Script) -> None:
    bad = 0

    def answer(call: Call) -> Answer:
        nonlocal bad
        bad = (bad + 1) % 4
        return Answer(503) if bad else Answer()

    probed = Probed(script.served.port, PATIENT)
    assert probed.is_ready()
    script.served.answer = answer
    probed.watch_until(lambda: len(script.served.calls) > 40)
    assert probed.probes.has_traffic
    assert probed.breaches == []


def test_a_late_answer_is_a_failed_probe(script: Script) -> None:
    over = threading.Event()
    limits = PlatformLimits(health_interval_s=0.005, health_s=0.02)
    probed = Probed(script.served.port, limits)
    probed.probes._has_traffic = True

    def answer(call: Call) -> Answer:
        over.wait(LIMIT_S)
        return Answer()

    script.served.answer = answer
    probed.watch_until(lambda: not probed.probes.has_traffic)
    over.set()
    assert probed.breaches[0].endswith("it did not answer within 20 ms")


def test_a_serving_container_that_ends_is_restarted(script: Script) -> None:
    probed = Probed(script.served.port, PATIENT)
    assert probed.is_ready()
    seen = []
    probed.machine.on_restart = lambda: seen.append(probed.probes.has_traffic)
    probed.machine.exit_status = -9
    probed.watch_until(lambda: probed.said)
    assert seen == [False]
    assert probed.probes.has_traffic
    assert probed.breaches == ["the container ended by itself, with status -9, and was started again"]
