"""Health is answered while a large text is read, on every port of one process, where all share a loop."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson
import pytest

from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.server import ServerProcess
from tests.unit.onnx_models import identity, write_version
from tests.unit.onnx_serving import identity_config

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("http_workers")]

ROWS = 1 << 17
WIDTH = 8
# Connections that ask for health.
PROBES = 6
# A text that is parsed in one step gives time for one or two answers: before the step, and after it.
ANSWERS = 6
JSON = "application/json"


class TextServer(ServerProcess):
    """A server of one model that gives its input back, on the plain port and SageMaker's."""

    def __init__(self, repository: Path, log: Path) -> None:
        (self.sagemaker_port,) = free_ports(1)
        super().__init__(
            repository,
            log,
            "--platform=plain",
            "--allow-sagemaker=true",
            f"--sagemaker-port={self.sagemaker_port}",
            "--shutdown-grace-secs=0",
        )


def served(datatype: str, folder: Path) -> TextServer:
    config = identity_config(datatype, [-1], max_batch_size=2 * ROWS)
    write_version(identity(datatype, ["n", "d"]), folder / "models", "echo", config)
    return TextServer(folder / "models", folder / "log")


@pytest.fixture(scope="module")
def numbers_server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextServer]:
    with served("FP32", tmp_path_factory.mktemp("numbers")) as server:
        yield server


@pytest.fixture(scope="module")
def strings_server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextServer]:
    with served("BYTES", tmp_path_factory.mktemp("strings")) as server:
        yield server


class Prober(threading.Thread):
    """Asks for health on one connection again and again until `stop`, and counts the answers."""

    def __init__(self, port: int, path: str) -> None:
        super().__init__(daemon=True)
        self._connection = http.client.HTTPConnection(HOST, port, timeout=60)
        self._path = path
        self._is_over = threading.Event()
        self.answers = 0
        self.statuses: set[int] = set()

    def run(self) -> None:
        with contextlib.closing(self._connection):
            while not self._is_over.is_set():
                self._connection.request("GET", self._path)
                response = self._connection.getresponse()
                response.read()
                self.statuses.add(response.status)
                self.answers += 1

    def stop(self) -> None:
        self._is_over.set()
        self.join(60)


def answers_meanwhile(port: int, health: str, path: str, media_type: str, body: bytes) -> tuple[int, bytes, list[int]]:
    """Status and content of the answer to `body`, and how many answers each prober got while it was made."""
    probers = [Prober(port, health) for _ in range(PROBES)]
    for prober in probers:
        prober.start()
    connection = http.client.HTTPConnection(HOST, port, timeout=120)
    with contextlib.closing(connection):
        try:
            connection.request("POST", path, body, {"Content-Type": media_type, "Accept": media_type})
            before = [prober.answers for prober in probers]
            response = connection.getresponse()
            counts = [prober.answers - count for prober, count in zip(probers, before, strict=True)]
            content = response.read()
        finally:
            for prober in probers:
                prober.stop()
    assert {status for prober in probers for status in prober.statuses} == {200}
    return response.status, content, counts


@pytest.mark.parametrize(("datatype", "health"), [("FP32", "ready"), ("BYTES", "live")])
def test_plain_port_while_a_document_is_read(datatype: str, health: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue("numbers_server" if datatype == "FP32" else "strings_server")
    numbers = (np.arange(ROWS * WIDTH) % 1000 / 8).tolist()
    sent = numbers if datatype == "FP32" else [f"string number {number} of this text" for number in range(ROWS)]
    tensor = {"name": "INPUT0", "datatype": datatype, "shape": [ROWS, len(sent) // ROWS], "data": sent}
    path, body = "/v2/models/echo/infer", orjson.dumps({"inputs": [tensor]})
    status, content, counts = answers_meanwhile(server.http_port, f"/v2/health/{health}", path, JSON, body)
    assert status == 200, content[:300]
    assert json.loads(content)["outputs"][0]["data"] == sent
    assert min(counts) >= ANSWERS, counts


@pytest.mark.parametrize("form", ["json", "jsonlines", "csv"])
def test_sagemaker_port_while_instances_are_read(numbers_server: TextServer, form: str) -> None:
    sent = (np.arange(ROWS * WIDTH) % 1000 / 8).reshape(-1, WIDTH).tolist()
    lines = [orjson.dumps(row) for row in sent]
    body = {
        "json": b'{"instances":[%b]}' % b",".join(lines),
        "jsonlines": b"\n".join(lines),
        "csv": b"\n".join(line[1:-1] for line in lines),
    }[form]
    media_type = "text/csv" if form == "csv" else f"application/{form}"
    port = numbers_server.sagemaker_port
    status, content, counts = answers_meanwhile(port, "/ping", "/invocations", media_type, body)
    assert status == 200, content[:300]
    text = {
        "json": content.removeprefix(b'{"predictions":').removesuffix(b"}"),
        "jsonlines": b"[%b]" % content.strip().replace(b"\n", b","),
        "csv": b"[[%b]]" % content.strip().replace(b"\n", b"],["),
    }[form]
    assert json.loads(text) == sent
    assert min(counts) >= ANSWERS, counts
