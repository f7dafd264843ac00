"""Each process's page sums the counts of all. The processes are real: forked from one that has imported everything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from werkzeug.test import Client

from tests.project import ROOT
from tests.unit.fake_engine import FakeEngine
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.admin import (
    OPENMETRICS,
    PROMETHEUS,
    MetricsPage,
    request_metrics_page,
    share_request_counts,
)
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.observability.switches import SWITCHES

LIMIT_S = 60
_COUNT = re.compile(r'^flask_http_request_duration_seconds_count\{method="GET",route="/v2",status="200"\} (.+)$', re.M)
_ANSWERED = re.compile(r'^trident_http_responses_total\{method="GET",route="/v2",status="200"\} (.+)$', re.M)
_TOTAL = re.compile(r'^flask_http_request_total\{method="GET",status="404"\} (.+)$', re.M)


class FrontEnd:
    """The application of one process, and its page."""

    def __init__(self, directory: Path) -> None:
        self._counts = share_request_counts(directory)
        self._application = V2Application(FakeEngine(), HttpOptions(), ThreadBridge())
        self._client = Client(self._application)

    def ask(self, times: int) -> None:
        for _ in range(times):
            self._client.get("/v2")
            self._client.get("/v2/nothing")

    def page(self) -> str:
        return request_metrics_page(self._counts or self._application.request_metrics).decode()

    def counts(self) -> tuple[str, ...]:
        """The counts of good requests by both metrics, and of requests for unknown paths."""
        page = self.page()
        return tuple(",".join(pattern.findall(page)) for pattern in (_COUNT, _ANSWERED, _TOTAL))


def in_a_process(work: Callable[[], None]) -> None:
    """Call the function in a new process, and wait for its end."""
    pid = os.fork()
    if not pid:
        try:
            work()
            sys.stdout.flush()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def two_front_ends(directory: Path) -> None:
    def first() -> None:
        FrontEnd(directory).ask(3)

    def second() -> None:
        front_end = FrontEnd(directory)
        print(*front_end.counts())
        front_end.ask(4)
        print(*front_end.counts())

    in_a_process(first)
    in_a_process(second)
    print(*FrontEnd(directory).counts())


def two_ports(directory: Path) -> None:
    """Two applications of one process count together."""
    front_end, other = FrontEnd(directory), FrontEnd(directory)
    front_end.ask(1)
    other.ask(2)
    print(*front_end.counts(), *other.counts())


def full_disk(directory: Path) -> None:
    """A process counts for itself."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    os.posix_fallocate = full
    front_end = FrontEnd(directory)
    front_end.ask(1)
    print(*front_end.counts())
    print(len(list(directory.iterdir())))


CASES: dict[Callable[[Path], None], list[str]] = {
    two_front_ends: ["3.0 3.0 3.0", "7.0 7.0 7.0", "7.0 7.0 7.0"],
    two_ports: ["3.0 3.0 3.0 3.0 3.0 3.0"],
    full_disk: ["1.0 1.0 1.0", "0"],
}


def run_all(directory: Path) -> None:
    for case in CASES:
        folder = directory / case.__name__
        folder.mkdir()
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
        print(f"[{case.__name__}]", flush=True)
        in_a_process(partial(case, folder))


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of all cases, each after its name in brackets."""
    folder = tmp_path_factory.mktemp("metrics")
    program = f"from pathlib import Path\nfrom {__name__} import run_all\nrun_all(Path({str(folder)!r}))"
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    finished = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_page_sums_the_counts_of_all_processes(case: Callable[[Path], None], output: str) -> None:
    """Each page shows the counts of every process, also of one that has ended."""
    found = output.partition(f"[{case.__name__}]\n")[2].partition("[")[0]
    assert found.splitlines() == CASES[case]


# --- metrics page


# What Prometheus 2.53 sends.
PROMETHEUS_ACCEPTS = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def page(openmetrics: bool) -> bytes:
    return b"open" if openmetrics else b"plain"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (PROMETHEUS_ACCEPTS, OPENMETRICS),
        ("application/openmetrics-text", OPENMETRICS),
        ("text/plain;q=0.5,application/openmetrics-text;q=0.4", PROMETHEUS),
        ("text/plain", PROMETHEUS),
        ("*/*", PROMETHEUS),
        ("", PROMETHEUS),
        ("application/json", PROMETHEUS),
        ("not a type", PROMETHEUS),
        ("x" * 5000, PROMETHEUS),
    ],
)
def test_the_scraper_chooses_the_format(accept: str, content_type: str) -> None:
    SWITCHES.set(histograms=True)
    reply = MetricsPage(page).reply({"HTTP_ACCEPT": accept})
    assert dict(reply.headers)["Content-Type"] == content_type
    assert reply.body == [b"open" if content_type == OPENMETRICS else b"plain"]
