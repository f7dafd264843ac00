"""The counts of requests, on the page of each process the sums of all, and the format of the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import values
from werkzeug.test import Client

from tests.project import ROOT
from tests.unit.fake_engine import FakeEngine
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.admin import request_metrics_page, share_request_counts
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions

# Of good requests by two metrics, and of those for unknown paths.
COUNTS = re.compile(
    r'^(?:flask_http_request_duration_seconds_count\{method="GET",route="/v2",status="200"\}'
    r'|trident_http_responses_total\{method="GET",route="/v2",status="200"\}'
    r'|flask_http_request_total\{method="GET",status="404"\}) (.+)$',
    re.MULTILINE,
)


def serve(directory: Path, times: int) -> None:
    """Ask two applications of this process in turns, and print the counts of its page."""
    registry = share_request_counts(directory)
    assert registry is not None
    clients = [Client(V2Application(FakeEngine(), HttpOptions(), ThreadBridge())) for _ in range(2)]
    for _ in range(times):
        for client in clients:
            client.get("/v2")
            client.get("/v2/nothing")
    print(*COUNTS.findall(request_metrics_page(registry).decode()), flush=True)


def serve_twice(directory: str) -> None:
    """A process that ends, and this one after it."""
    if not os.fork():
        try:
            serve(Path(directory), 3)
        finally:
            os._exit(0)
    os.wait()
    serve(Path(directory), 4)


def test_page_has_the_counts_of_running_and_ended_processes(tmp_path: Path) -> None:
    program = f"from {__name__} import serve_twice\nserve_twice({str(tmp_path)!r})"
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == ["6.0 6.0 6.0", "14.0 14.0 14.0"], done.stderr


def test_a_process_counts_for_itself_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(values, "ValueClass", None)
    assert share_request_counts(tmp_path) is None
    assert values.ValueClass is values.MutexValue
    assert list(tmp_path.iterdir()) == []
