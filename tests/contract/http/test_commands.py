"""`trident bench` on a server that runs: protocols, an open loop, sequences, streams, refusals, comparisons, files."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.session import TRIDENT
from tests.project import ROOT
from trident.app.cli import main

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = tmp_path_factory.mktemp("models")
    for path in ("models/simple", "examples/running_mean", "examples/stream_words"):
        (models / Path(path).name).symlink_to(ROOT / "deploy" / path)
    with ServerProcess(models, tmp_path_factory.mktemp("server") / "log", "--shutdown-grace-secs=0") as running:
        yield running


def bench(server: ServerProcess, folder: Path, model: str, *options: str, status: int = 0) -> dict[str, Any]:
    """Output of the command after levels of a tenth of a second."""
    url = f"127.0.0.1:{server.grpc_port if 'grpc' in options else server.http_port}"
    given = ["bench", model, "-u", url, "-p", "100", f"--output={folder}/found", *options]
    if "--request-rate-range" not in "".join(options):
        given.append("--concurrency-range=2")
    assert main(given) == status
    document: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return document


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("simple", ()),
        ("simple", ("--input-tensor-format=json", "--output-tensor-format=json", "-b", "3")),
        ("simple", ("-i", "grpc")),
        ("simple", ("-i", "grpc", "--streaming")),
        ("running_mean", ("-i", "grpc")),
        ("running_mean", ("--input-data=zero",)),
        ("stream_words", ("-i", "grpc", "--streaming")),
        ("stream_words", ("--streaming",)),
    ],
)
def test_every_request_is_answered(model: str, options: tuple[str, ...], server: ServerProcess, tmp_path: Path) -> None:
    (level,) = bench(server, tmp_path, model, *options)["sides"][0]["levels"]

    assert level["errors"] == 0, level["error"]
    assert level["requests"] > 0
    assert level["server"]["requests"] > 0


def test_open_loop_sends_the_requested_rate(server: ServerProcess, tmp_path: Path) -> None:
    (level,) = bench(server, tmp_path, "simple", "--request-rate-range=100")["sides"][0]["levels"]

    assert level["requests"] == 10
    assert level["asked_rate"] == 100


def test_refusals_are_errors_with_their_text(
    server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (level,) = bench(server, tmp_path, "simple", "--shape=INPUT0:7", status=1)["sides"][0]["levels"]

    assert level["requests"] == 0
    assert "INPUT0" in level["error"]
    assert "errors, such as:" in capsys.readouterr().out


def test_an_address_without_a_server_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    assert main(["bench", "simple", f"--url={HOST}:{port}"]) == 1
    error = capsys.readouterr().err
    assert f"no server answers at http://{HOST}:{port}: [Errno 111] Connection refused" in error
    assert "--url" in error


def test_two_servers_are_compared_and_their_page_loads_nothing(server: ServerProcess, tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [{"INPUT0": [1] * 16, "INPUT1": {"content": [2] * 16, "shape": [16]}}]}))
    again = f"--url=http://127.0.0.1:{server.http_port}"

    found = bench(server, tmp_path, "simple", again, f"--input-data={data}")

    assert [len(side["levels"]) for side in found["sides"]] == [1, 1]
    assert {each["what"] for each in found["differences"]} == {"requests/s", "p50", "p99"}
    page = (tmp_path / "found.html").read_text()
    assert not re.search(r"<(script|link|img)|url\(|@import", page)
    plots = re.findall(r"<svg.*?</svg>", page)
    assert len(plots) >= 4
    assert all(ElementTree.fromstring(plot).tag == "svg" for plot in plots)


def test_runs_are_compared_by_their_files(
    server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench(server, tmp_path, "simple")
    file = str(tmp_path / "found.json")

    assert main(["bench", "--compare", file, file]) == 0
    assert capsys.readouterr().out.count("no difference shown") == 3


# --- trident doctor, and a second server beside one that runs


pytestmark = pytest.mark.slow

LIMIT_S = 120.0


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit status, and the lines of the report by their check."""
    done = subprocess.run([TRIDENT, "doctor", "--json", *arguments], capture_output=True, text=True, timeout=LIMIT_S)
    return done.returncode, {line["check"]: line for line in json.loads(done.stdout)["lines"]}


def ports_of(server: ServerProcess) -> list[str]:
    return [
        f"--http-address={HOST}",
        f"--grpc-address={HOST}",
        f"--http-port={server.http_port}",
        f"--grpc-port={server.grpc_port}",
        f"--metrics-port={server.metrics_port}",
    ]


def test_doctor_accepts_ports_of_a_running_server(server: ServerProcess) -> None:
    status, lines = doctor(*ports_of(server))
    assert status == 0
    for name in ("HTTP", "GRPC", "Metrics"):
        assert lines[name]["level"] == "warning"
        assert "is that of a running server, triton " in lines[name]["text"]
        assert f"(pid {server.process.pid})" in lines[name]["text"]


def test_doctor_checks_a_running_server_by_address(server: ServerProcess) -> None:
    status, lines = doctor(server.address, f"--metrics-port={server.metrics_port}")
    assert status == 0
    assert {line["level"] for line in lines.values()} == {"ok"}
    assert {"live", "ready", "version", "clock", "models", "metrics"} <= lines.keys()


def test_doctor_exits_with_1_for_a_closed_port() -> None:
    (port,) = free_ports(1)
    status, lines = doctor(f"http://{HOST}:{port}")
    assert (status, lines["live"]["level"]) == (1, "failed")


def test_a_server_on_a_taken_port_names_the_owner_and_the_option(server: ServerProcess) -> None:
    command = [TRIDENT, "serve", str(server.repository), *ports_of(server), "--allow-grpc=false"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1
    assert f"Socket '{HOST}:{server.http_port}' already in use" in done.stderr
    assert f"(pid {server.process.pid}) has it: stop that process, or choose another with --http-port" in done.stderr
