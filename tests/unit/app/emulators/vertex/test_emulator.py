"""The whole emulator, with a small script as the container."""

from __future__ import annotations

import io
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from tests.unit.app.emulators.scripted_container import HOST, LIMIT_S, Answer, Call, ScriptedContainer
from tests.waiting import until
from trident.app.emulators.container import BreachReport, ContainerClient
from trident.app.emulators.vertex.batch import BatchOptions, InstancesFormat
from trident.app.emulators.vertex.container import Probes
from trident.app.emulators.vertex.emulator import Emulator, EmulatorOptions
from trident.app.emulators.vertex.limits import Deployment, PlatformLimits
from trident.core.errors import ConfigInvalid

QUICK = PlatformLimits(deployment_s=0.2, health_interval_s=0.005, liveness_interval_s=0.02)


# Answers every request with predictions of its arguments and its environment.
SERVE = """\
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Connection(BaseHTTPRequestHandler):
    def do_GET(self):
        assert self.path == os.environ["AIP_HEALTH_ROUTE"], self.path
        self.answer({})

    def do_POST(self):
        instances = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["instances"]
        found = {"arguments": sys.argv[1:], "environment": dict(os.environ), "path": self.path}
        self.answer({"predictions": [{**found, "instance": each} for each in instances]})

    def answer(self, document):
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

HTTPServer(("127.0.0.1", int(os.environ["AIP_HTTP_PORT"])), Connection).serve_forever()
"""
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SERVE}"
# Does not listen on its first start.
LATE = f"""\
import os, time
if not os.path.exists(os.environ["MARK"]):
    open(os.environ["MARK"], "w").close()
    time.sleep({LIMIT_S})
{SERVE}"""
ENDPOINT = Deployment(display_name="mine")


class Emulated:
    """An emulator on its own thread."""

    def __init__(self, folder: Path, script: str, **options: Any) -> None:
        model = folder / "model"
        model.mkdir()
        (model / "weights").write_text("w")
        self.out = io.StringIO()
        self.stopped = threading.Event()
        self.url = ""
        self.status: int | None = None
        self._ready = threading.Event()
        chosen: dict[str, Any] = {
            "model": str(model),
            "command": [sys.executable, "-c", script],
            "environment": {"AIP_MODE": "mine", "HOME": "/here"},
            "deployment": ENDPOINT,
            **options,
        }
        self.emulator = Emulator(EmulatorOptions(**chosen), self.out)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.status = self.emulator.run(self.stopped, self._on_ready)
        finally:
            self._ready.set()

    def _on_ready(self, url: str) -> None:
        self.url = url
        self._ready.set()

    def __enter__(self) -> Emulated:
        self._thread.start()
        assert self._ready.wait(LIMIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> list[str]:
        """The breaches."""
        self.stopped.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        return list(self.emulator.report.breaches)

    def predict(self) -> Mapping[str, Any]:
        request = Request(f"{self.url}/v1/{ENDPOINT.endpoint}:predict", b'{"instances": [7]}')
        with build_opener(ProxyHandler({})).open(request, timeout=LIMIT_S) as response:
            (found,) = json.loads(response.read())["predictions"]
        prediction: Mapping[str, Any] = found
        return prediction


@pytest.mark.slow
def test_a_container_that_does_not_listen_is_restarted(tmp_path: Path) -> None:
    limits = PlatformLimits(liveness_interval_s=0.2)
    with Emulated(tmp_path, LATE, variables={"MARK": str(tmp_path / "mark")}, limits=limits) as emulated:
        assert emulated.predict()["instance"] == 7
        (breach, *more) = emulated.end()
    assert breach.startswith("liveness: the container did not listen on port")
    assert more == []
    assert emulated.status == 1


def test_a_container_that_does_not_end_is_killed(tmp_path: Path) -> None:
    with Emulated(tmp_path, STUBBORN, limits=PlatformLimits(stop_s=0.1)) as emulated:
        assert emulated.end() == ["the container did not end within 100 ms of SIGTERM and was killed"]
    assert emulated.status == 1


def test_the_emulator_ends_with_its_job(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("1\n2\n")
    batch = BatchOptions(input=source, output=tmp_path / "out", instances_format=InstancesFormat.JSONL)
    with Emulated(tmp_path, SERVE, batch=batch) as emulated:
        pass
    assert emulated.status == 0
    assert "2 instances predicted, 0 failed" in emulated.out.getvalue()
    lines = (tmp_path / "out" / "predictions_0001.jsonl").read_text().splitlines()
    assert [json.loads(line)["instance"] for line in lines] == [1, 2]


def test_a_missing_model_starts_nothing(tmp_path: Path) -> None:
    options = EmulatorOptions(model=str(tmp_path / "none"), command=["/nothing"], environment={})
    with pytest.raises(ConfigInvalid, match="is not there"):
        Emulator(options, io.StringIO()).run(threading.Event())


def test_a_port_in_use_starts_nothing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        options = EmulatorOptions(
            model="gs://any", command=["/nothing"], environment={}, api_port=taken.getsockname()[1]
        )
        with pytest.raises(ConfigInvalid, match="cannot listen at"):
            Emulator(options, io.StringIO()).run(threading.Event())


def test_stopping_before_the_start_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("w")
    stopped = threading.Event()
    stopped.set()
    options = EmulatorOptions(model=str(tmp_path), command=["/nothing"], environment={})
    assert Emulator(options, io.StringIO()).run(stopped) == 0


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


def test_a_container_that_does_not_listen_is_restarted_and_reported(silent_port: int) -> None:
    probed = Probed(silent_port, QUICK)
    assert not probed.is_ready(lambda: probed.machine.restarts > 0)
    (breach,) = probed.breaches
    assert breach.startswith(f"liveness: the container did not listen on port {silent_port} in 4 tries 20 ms apart")
    assert breach.endswith("and was started again")


def test_a_listening_container_is_not_restarted_during_its_load(script: Script) -> None:
    script.answer = Answer(503)
    probed = Probed(script.served.port, PlatformLimits(liveness_interval_s=0.0, deployment_s=0.3))
    assert not probed.is_ready()
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
