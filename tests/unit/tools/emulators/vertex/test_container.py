"""Vertex AI's artifacts, arguments and variables of a container, and its probes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tools.emulators.scripted_container import HOST, LIMIT_S, Answer, Call, ScriptedContainer, watch_until
from trident.core.errors import ConfigInvalid
from trident.tools.emulators.container import BreachReport, ContainerClient
from trident.tools.emulators.vertex.container import HealthProbes, expanded, platform_variables, provided
from trident.tools.emulators.vertex.endpoint import Deployment, VertexLimits

QUICK = VertexLimits(deployment_s=0.2, health_interval_s=0.005, liveness_interval_s=0.02)


def test_a_folder_is_copied_read_only(tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.onnx").write_bytes(b"x")
    (model / "link.onnx").symlink_to(model / "1" / "model.onnx")
    copy = Path(provided(str(model), tmp_path / "copy"))
    assert copy == tmp_path / "copy"
    (model / "1" / "model.onnx").write_bytes(b"changed")
    assert (copy / "1" / "model.onnx").read_bytes() == b"x"
    assert not (copy / "link.onnx").is_symlink()
    assert not (copy / "1").stat().st_mode & 0o222


@pytest.mark.parametrize(
    ("model", "text"), [("nothing", "is not there"), ("file", "is a file"), ("gs://", "no bucket")]
)
def test_invalid_artifacts_are_refused(model: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigInvalid, match=text):
        provided(model if model.startswith("gs:") else str(tmp_path / model), tmp_path / "copy")


def test_a_failed_copy_gives_the_reason(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "dangling").symlink_to(tmp_path / "nothing")
    with pytest.raises(ConfigInvalid, match="No such file"):
        provided(str(model), tmp_path / "copy")


def test_routes_of_the_model_replace_the_platforms() -> None:
    own = Deployment(predict_route="/predict", health_route="/health")
    found = platform_variables(own, 1, "")
    assert (found["AIP_PREDICT_ROUTE"], found["AIP_HEALTH_ROUTE"]) == ("/predict", "/health")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("$(A)-$(A)", "1-1"),
        ("$(B)", "$(B)"),
        ("$$(A)", "$(A)"),
        ("$$", "$"),
        ("$A ${A} $(A", "$A ${A} $(A"),
    ],
)
def test_references_to_variables_are_replaced(text: str, value: str) -> None:
    assert expanded(text, {"A": "1"}) == value


# --- probes


PATIENT = VertexLimits(health_interval_s=0.005)
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
    def __init__(self, port: int, limits: VertexLimits) -> None:
        self.machine = Machine()
        self.report = BreachReport()
        self.said: list[str] = []
        client = ContainerClient(port, limits)
        self.probes = HealthProbes(self.machine, client, HEALTH, limits, self.report, self.said.append)

    @property
    def breaches(self) -> list[str]:
        return list(self.report.breaches)

    def is_ready(self, is_stopped: Callable[[], bool] = lambda: False) -> bool:
        return self.probes.wait_until_ready(is_stopped)

    def watch_until(self, condition: Callable[[], Any]) -> None:
        watch_until(self.probes.watch, condition)


@pytest.fixture
def script() -> Iterator[ScriptedContainer]:
    with ScriptedContainer(lambda call: Answer()) as made:
        yield made


@pytest.fixture
def silent_port() -> Iterator[int]:
    with socket.socket() as held:  # no process listens on it, and no other can bind it
        held.bind((HOST, 0))
        yield held.getsockname()[1]


def test_a_container_that_does_not_listen_is_restarted_and_reported(silent_port: int) -> None:
    probed = Probed(silent_port, QUICK)
    assert not probed.is_ready(lambda: probed.machine.restarts > 0)
    (breach,) = probed.breaches
    assert breach.startswith(f"liveness: the container did not listen on port {silent_port} in 4 tries 20 ms apart")
    assert breach.endswith("and was started again")


def test_a_listening_container_is_not_restarted_during_its_load(script: ScriptedContainer) -> None:
    script.answer = lambda call: Answer(503)
    probed = Probed(script.port, VertexLimits(liveness_interval_s=0.0, deployment_s=0.3))
    assert not probed.is_ready()
    assert probed.machine.restarts == 0


def test_stopping_ends_the_wait_for_the_start(silent_port: int) -> None:
    probed = Probed(silent_port, PATIENT)
    assert not probed.is_ready(lambda: True)
    assert probed.breaches == []


def test_four_failed_probes_end_the_traffic_and_a_good_one_restores_it(script: ScriptedContainer) -> None:
    probed = Probed(script.port, PATIENT)
    assert probed.is_ready()
    script.answer = lambda call: Answer(503, b"busy")
    probed.watch_until(lambda: not probed.probes.has_traffic)
    assert len(script.calls) >= 5
    assert probed.breaches == [
        "health: 4 failed probes in a row, so the container got no more calls: at the last one it answered 503: busy"
    ]
    script.answer = lambda call: Answer()
    probed.watch_until(lambda: probed.probes.has_traffic)
    assert probed.said == ["the container is healthy again and gets calls"]
    assert probed.machine.restarts == 0
    assert len(probed.breaches) == 1


def test_a_late_answer_is_a_failed_probe(script: ScriptedContainer) -> None:
    over = threading.Event()
    limits = VertexLimits(health_interval_s=0.005, health_s=0.02)
    probed = Probed(script.port, limits)
    probed.probes.has_traffic = True

    def answer(call: Call) -> Answer:
        over.wait(LIMIT_S)
        return Answer()

    script.answer = answer
    probed.watch_until(lambda: not probed.probes.has_traffic)
    over.set()
    assert probed.breaches[0].endswith("it did not answer within 20 ms")


def test_a_serving_container_that_ends_is_restarted(script: ScriptedContainer) -> None:
    probed = Probed(script.port, PATIENT)
    assert probed.is_ready()
    seen = []
    probed.machine.on_restart = lambda: seen.append(probed.probes.has_traffic)
    probed.machine.exit_status = -9
    probed.watch_until(lambda: probed.said)
    assert seen == [False]
    assert probed.probes.has_traffic
    assert probed.breaches == ["the container ended by itself, with status -9, and was started again"]
