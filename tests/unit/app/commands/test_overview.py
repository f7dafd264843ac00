"""`trident status`, `trident top` and `trident request`: what they make of a server's answers."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from trident.adapters.common.options import BadOption
from trident.app.commands.overview import Answer, NoAnswer, Overview, Row, page, status, top
from trident.app.commands.request import request


def stats(model: str, requests: int, ms: int, queue_ms: int, failed: int = 0, executions: int = 0) -> dict[str, Any]:
    counts = {
        "success": {"count": requests, "ns": requests * ms * 10**6},
        "fail": {"count": failed, "ns": 0},
        "queue": {"count": requests, "ns": requests * queue_ms * 10**6},
    }
    return {
        "name": model,
        "version": "1",
        "inference_count": requests * 4,
        "execution_count": executions or requests,
        "inference_stats": counts,
    }


class Server:
    """Answers with `models`, which a test changes between the pages of `top`."""

    def __init__(self, *models: dict[str, Any], ready: int = 200, **answers: Any) -> None:
        self.models = list(models)
        self.index: Any = [{"name": each["name"], "version": "1", "state": "READY"} for each in models]
        self.ready = ready, answers
        self.console: list[dict[str, Any]] = []

    def __call__(self, method: str, url: str) -> Answer:
        if url.endswith("/index"):
            return self._answer(200 if self.index is not None else 401, self.index)
        if "/console/" in url:
            return self._answer(200 if self.console else 404, {"rows": self.console})
        if "/health/" in url:
            return self._answer(*self.ready)
        return self._answer(200, {"model_stats": self.models})

    @staticmethod
    def _answer(status: int, document: Any) -> Answer:
        return Answer(status, json.dumps(document).encode(), {}, 0.0)


def absent(method: str, url: str) -> Answer:
    raise NoAnswer("refused")


def test_status_has_means_since_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(stats("quick", 10, 2, 1, executions=5), stats("slow", 1, 90, 9, failed=3))
    server.index.append({"name": "broken", "version": "2", "state": "UNAVAILABLE", "reason": "no\x1b[1m file"})
    assert status([], server) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "http://localhost:8000: ready; 2 of 3 versions ready, 11 requests, 3 failed since the start"
    assert [line.split() for line in lines[-3:]] == [
        ["quick", "1", "READY", "10", "0", "2.00", "ms", "50%", "8.0"],
        ["slow", "1", "READY", "1", "3", "90.00", "ms", "10%", "4.0", "<--"],
        ["broken", "2", "UNAVAILABLE", "0", "0", "-", "-", "-"],
    ]
    assert lines[1] == r"  broken 2: no\u001b[1m file"


def test_a_server_with_a_console_tells_percentiles_of_the_last_minute(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(stats("quick", 10, 2, 1), stats("idle", 0, 0, 0))
    server.console = [{"name": "quick", "version": 1, "p50_us": 1500.0, "p99_us": 9000.0}]
    server.console.append({"name": "idle", "version": 1, "p50_us": 0.0, "p99_us": 0.0})
    assert status([], server) == 0
    heading, quick, idle = (line.split() for line in capsys.readouterr().out.splitlines()[-3:])
    assert heading[-2:] == ["p50", "p99"]
    assert quick[-5:-1] == ["1.50", "ms", "9.00", "ms"]
    assert idle[-2:] == ["-", "-"]


def test_the_exit_status_is_1_unless_the_server_is_ready(capsys: pytest.CaptureFixture[str]) -> None:
    loading = Server(ready=400, phase="loading", loaded=1, total=3, failures={"bad": "no file"})
    assert status(["--json", "http://gate"], loading) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["problems"] == ["loading, 1 of 3 models loaded", "bad: no file"]
    assert not shown["ready"]

    assert status([], absent) == 1
    assert "no answer: refused" in capsys.readouterr().out
    with pytest.raises(BadOption, match="one address"):
        status(["localhost:8000"], loading)


def test_top_has_the_difference_of_two_readings(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(stats("m", 100, 5, 1), stats("reloaded", 50, 5, 1))
    server.index = None  # closed to this caller

    def work(seconds: float) -> None:
        assert seconds == 0.5
        server.models = [stats("m", 110, 5, 1), stats("reloaded", 2, 7, 1)]

    assert top(["--count=2", "--interval=0.5", "--sort=name"], server, work) == 0
    first, second = capsys.readouterr().out.split("\n\nhttp:")
    assert "150 requests, 0 failed since the start" in first
    assert "the states of models are unknown: it is not open to callers without a token" in first
    rows = [line.split() for line in second.rstrip().splitlines()[-2:]]
    assert [row[0] for row in rows] == ["m", "reloaded"]
    assert rows[1][5:7] == ["7.00", "ms"]


def test_the_page_fits_the_terminal() -> None:
    rows = tuple(Row(model=f"model-{number:05}-{'x' * 50}", version="1", requests=number) for number in range(10_000))
    shown = page(Overview(url="http://x", ready=True, models=rows), "requests", os.terminal_size((80, 12)))
    lines = shown.splitlines()
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 80
    assert lines[3].startswith("model-0")
    assert "  9999  " in lines[3]
    assert lines[-1].startswith("... and ")


# --- trident request

# As Triton gives it, with a field that is not known here.
CONFIG = {
    "name": "m",
    "platform": "onnxruntime_onnx",
    "max_batch_size": 8,
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": ["-1", 4]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]}],
    "of_a_later_version": {},
}


def answering(status: int, document: Any, url: str) -> Any:
    def ask(method: str, asked: str) -> Answer:
        assert (method, asked) == ("GET", url)
        return Answer(status, json.dumps(document).encode(), {}, 0.0)

    return ask


def test_a_request_is_made_from_the_configuration(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "a secret")
    server = answering(200, CONFIG, "http://h:9/p/v2/models/m/versions/3/config")
    options = ["--form=grpc", "--shape=IN:2,7,4", "--model-version=3"]
    assert request(["m", "http://h:9/p/", *options], server) == 0
    text = capsys.readouterr().out
    assert 'triton.InferInput("IN", [2, 7, 4], "FP32")' in text
    assert 'InferenceServerClient("h:8001")' in text
    assert 'model_version="3", headers={"authorization": "Bearer " + os.environ["TOKEN"]}' in text
    assert "secret" not in text


def test_what_is_missing_is_said() -> None:
    for arguments, server, text in (
        ([], absent, "a model is missing"),
        (["m"], absent, "no answer from http://localhost:8000: refused"),
        (["m"], answering(404, {"error": "unknown"}, "http://localhost:8000/v2/models/m/config"), "HTTP 404: unknown"),
        (["m"], answering(200, [], "http://localhost:8000/v2/models/m/config"), "no model configuration"),
    ):
        with pytest.raises(BadOption, match=text):
            request(arguments, server)
