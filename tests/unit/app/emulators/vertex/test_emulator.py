"""The whole emulator, with a small script as the container."""

from __future__ import annotations

import io
import json
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from tests.unit.app.emulators.scripted_container import HOST, LIMIT_S
from trident.app.emulators.vertex.batch import BatchOptions, InstancesFormat
from trident.app.emulators.vertex.emulator import Emulator, EmulatorOptions
from trident.app.emulators.vertex.limits import Deployment, PlatformLimits
from trident.core.errors import ConfigInvalid

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


def test_a_container_gets_the_platforms_environment_and_artifacts(tmp_path: Path) -> None:
    options = {"arguments": ["--a=$(AIP_MODE)"], "variables": {"MINE": "1"}}
    with Emulated(tmp_path, SERVE, **options) as emulated:
        found = emulated.predict()
        variables = found["environment"]
        assert found["arguments"] == ["--a=PREDICTION"]
        assert found["path"] == variables["AIP_PREDICT_ROUTE"]
        assert (variables["AIP_MODE"], variables["MINE"], variables["HOME"]) == ("PREDICTION", "1", "/here")
        artifacts = Path(variables["AIP_STORAGE_URI"])
        assert (artifacts / "weights").read_text() == "w"
        assert artifacts != tmp_path / "model"
        assert emulated.end() == []
    assert emulated.status == 0
    assert emulated.out.getvalue().endswith("1 call\nthe container kept all limits of the platform\n")
    assert not artifacts.exists()
    assert not Path(variables["TMPDIR"]).exists()


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


def test_a_container_that_ends_fails_the_deployment(tmp_path: Path) -> None:
    with Emulated(tmp_path, "raise SystemExit(3)") as emulated:
        assert emulated.end() == ["the container ended by itself, with status 3"]
    assert (emulated.status, emulated.url) == (1, "")


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
