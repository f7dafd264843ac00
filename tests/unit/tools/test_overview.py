"""`trident status`, `trident top` and `trident request`: what they make of a server's answers. `trident trace`: the
file that it reads, and what it draws."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from trident.adapters.common.options import BadOption
from trident.app.cli import main
from trident.core.errors import ModelNotReady
from trident.core.lifecycle.state import REGISTERED
from trident.tools.ask import Answer, NoAnswer
from trident.tools.overview import ADDRESS, Overview, Row, page, status, top
from trident.tools.request import request
from trident.tools.trace import Span, draw, read_requests


def stats(model: str, requests: int, ms: int, queue_ms: int, failed: int = 0, large: int = 0) -> dict[str, Any]:
    counts = {
        "success": {"count": requests, "ns": requests * ms * 10**6},
        "fail": {"count": failed, "ns": 0},
        "queue": {"count": requests, "ns": requests * queue_ms * 10**6},
    }
    return {
        "name": model,
        "version": "1",
        "inference_count": requests * 4,
        "inference_stats": counts,
        "batch_stats": [
            {"batch_size": 4, "compute_infer": {"count": requests + failed}},
            {"batch_size": 16, "compute_infer": {"count": large}},
        ],
    }


class Server:
    """Answers with `models`, which a test changes between the pages of `top`."""

    def __init__(self, *models: dict[str, Any], ready: int = 200, **answers: Any) -> None:
        self.models = list(models)
        self.index: Any = [{"name": each["name"], "version": "1", "state": "READY"} for each in models]
        self.ready = ready, answers
        self.console: list[dict[str, Any]] = []
        self.demand: dict[str, Any] = {}

    def __call__(self, method: str, url: str) -> Answer:
        if url.endswith("/index"):
            return self._answer(200 if self.index is not None else 401, self.index)
        if url.endswith("/demand"):
            return self._answer(200 if self.demand else 404, self.demand)
        if "/console/" in url:
            return self._answer(200 if self.console else 404, {"rows": self.console, "refused": 9})
        if "/health/" in url:
            return self._answer(*self.ready)
        return self._answer(200, {"model_stats": self.models})

    @staticmethod
    def _answer(status: int, document: Any) -> Answer:
        return Answer(status, json.dumps(document).encode(), {}, 0.0)


def absent(method: str, url: str) -> Answer:
    raise NoAnswer("refused")


def test_status_has_means_since_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(stats("quick", 10, 2, 1, large=5), stats("slow", 1, 1200, 120, failed=3))
    server.index.append({"name": "broken", "version": "2", "state": "UNAVAILABLE", "reason": "no\x1b[1m file"})
    failures = {"broken": "version 2 is UNAVAILABLE: no file", "unread": "failed to read it"}
    server.ready = 200, {"failures": failures}
    assert status([], server) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "http://localhost:8000: ready; 2 of 3 versions ready, 11 requests, 3 failed since the start"
    assert [line.split() for line in lines[-3:]] == [
        ["quick", "1", "READY", "10", "0", "2.00", "ms", "50%", "8.0"],
        ["slow", "1", "READY", "1", "3", "1200.00", "ms", "10%", "4.0", "<--"],
        ["broken", "2", "UNAVAILABLE", "0", "0", "-", "-", "-"],
    ]
    assert lines[1:-4] == ["  unread: failed to read it", r"  broken 2: no\u001b[1m file", ""]


def test_status_shows_the_last_minute_of_a_server_with_a_console(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(stats("quick", 10, 2, 1), stats("idle", 0, 0, 0))
    server.console = [{"name": "quick", "version": 1, "p50_us": 1500.0, "p99_us": 9000.0, "refused": 7}]
    server.console.append({"name": "idle", "version": 1, "p50_us": 0.0, "p99_us": 0.0, "refused": 0})
    assert status([], server) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("0 failed since the start; 9 refused in the last minute")
    heading, quick, idle = (line.split() for line in lines[-3:])
    assert heading[-3:] == ["p50", "p99", "refused"]
    assert quick[-5:] == ["1.50", "ms", "9.00", "ms", "7"]
    assert idle[-3:] == ["-", "-", "0"]


def test_endless_execution_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(stats("stuck", 1, 2, 1), stats("quick", 10, 2, 1))
    server.models[0]["long_execution"] = {"ns": 45 * 10**9, "pending_count": 3}
    assert status([], server) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line == "  stuck 1: an execution has run for 45 s; 3 requests wait behind it"


def test_registered_models_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(stats("m", 10, 2, 1))
    cold = {"version": "1", "state": "UNAVAILABLE", "reason": REGISTERED}
    server.index += [{"name": f"cold{number}", **cold} for number in range(3)]
    assert status(["http://server"], server) == 0
    shown = capsys.readouterr().out
    assert "1 of 1 versions ready, 3 registered, 10 requests" in shown
    assert "cold" not in shown
    models = [{"model": "m", "cold_starts": 7, "last_cold_s": 0.2}, {"model": "pinned", "cold_starts": 0}]
    gone = [{"at": 0.0, "model": "\x1bx", "bytes": 5_000_000, "text": "it was idle for 5 s"}]
    server.demand = {"registered": 4, "resident": 1, "resident_bytes": 10**9, "budget_bytes": 2 * 10**9, "waiting": 3}
    server.demand |= {"loads": 6, "models": models, "let_go": gone}
    assert status(["http://server"], server) == 0
    lines = capsys.readouterr().out.splitlines()[1:4]
    assert lines[0] == (
        "  1 of 4 models in memory, 1,000 of 2,000 MB; 6 loads in the last minute, 3 requests wait for one"
    )
    assert lines[1] == "  cold starts: m 7, last 0.20 s"
    assert re.fullmatch(r"  let go at [\d:]{8}: \\u001bx, 5.0 MB, it was idle for 5 s", lines[2])
    server.demand |= {
        "budget_bytes": 9 * 10**8,
        "models": [each | {"is_resident": True, "bytes": 7} for each in models],
    }
    assert status(["http://server"], server) == 0
    assert "  100 MB more than the budget, held by models in use or pinned, the largest: m 0.0 MB, pinned 0.0 MB" in (
        capsys.readouterr().out
    )


def test_another_port_than_that_of_http_is_not_ready(capsys: pytest.CaptureFixture[str]) -> None:
    def metrics(method: str, url: str) -> Answer:
        return Answer(405 if method == "POST" else 200, b"", {}, 0.0)

    assert status(["localhost:8002"], metrics) == 1
    assert capsys.readouterr().out == f"http://localhost:8002: NOT READY\n  {ADDRESS}\n"


def test_the_exit_status_is_1_unless_the_server_is_ready(capsys: pytest.CaptureFixture[str]) -> None:
    loading = Server(ready=400, phase="loading", loaded=1, total=3, failures={"bad": "no file"})
    assert status(["--json", "http://gate"], loading) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["problems"] == ["loading, 1 of 3 models loaded", "bad: no file"]
    assert not shown["ready"]

    assert status([], absent) == 1
    assert capsys.readouterr().out == f"http://localhost:8000: NOT READY\n  no answer: refused\n  {ADDRESS}\n"
    assert status(["gate:8000"], loading) == 1
    assert capsys.readouterr().out.startswith("http://gate:8000: NOT READY")
    with pytest.raises(BadOption, match="one address"):
        status(["ftp://localhost:8000"], loading)


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


def test_failed_request_command_reports_the_reason() -> None:
    for arguments, server, text in (
        ([], absent, "a model is missing"),
        (["m"], absent, "no server answers at http://localhost:8000: refused"),
        (["m"], answering(404, {"error": "unknown"}, "http://localhost:8000/v2/models/m/config"), "HTTP 404: unknown"),
        (
            ["m", "h:9"],
            answering(404, {"error": "unknown", "hint": "did you mean 'n'?"}, "http://h:9/v2/models/m/config"),
            r"unknown \(did you mean 'n'\?\)",
        ),
        (["m"], answering(200, [], "http://localhost:8000/v2/models/m/config"), "not a model configuration"),
    ):
        with pytest.raises((BadOption, ModelNotReady), match=text):
            request(arguments, server)


# --- trident trace


def names(span: Span) -> list[Any]:
    return [span.name, *map(names, span.spans)]


def write(path: Path, *objects: Any) -> Path:
    path.write_text(json.dumps(objects))
    return path


def times(number: int, **events: int) -> list[dict[str, Any]]:
    return [{"id": number, "timestamps": [{"name": name, "ns": ns}]} for name, ns in events.items()]


STEP = {"QUEUE_START": 12, "COMPUTE_START": 13, "COMPUTE_INPUT_END": 14, "COMPUTE_OUTPUT_START": 15, "COMPUTE_END": 16}


def test_trace_of_an_ensemble_is_read_in_any_order(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t",
        {"id": 2, "model_name": "step", "model_version": 3, "parent_id": 1},
        *times(2, REQUEST_START=11, **STEP, REQUEST_END=17),
        *times(1, HTTP_RECV_START=1, HTTP_RECV_END=2, REQUEST_START=10, QUEUE_START=10, REQUEST_END=18),
        *times(1, HTTP_SEND_START=19, HTTP_SEND_END=20),
        {"id": 1, "model_name": "all", "model_version": 1, "request_id": "r"},
        {"id": 1, "activity": "TENSOR_QUEUE_INPUT", "tensor": {}},
    )
    (request,) = read_requests(path)
    parts = [["queue"], ["compute_input"], ["compute_infer"], ["compute_output"]]
    assert names(request.span) == ["request r", ["receive"], ["all v1", ["step v3", *parts]], ["send"]]
    assert (request.request_id, request.span.duration_ns) == ("r", 19)
    assert [span.duration_ns for span in request.span.spans] == [1, 8, 1]


def test_tritons_unfinished_and_circular_trace_files_are_read(tmp_path: Path) -> None:
    events = [{"name": "GRPC_WAITREAD_START", "ns": 1}, {"name": "GRPC_WAITREAD_END", "ns": 2}]
    events += [{"name": "REQUEST_START", "ns": 3}, {"name": "REQUEST_END", "ns": 9}]
    path = write(tmp_path / "t", {"model_name": "m", "model_version": -1, "id": 7, "timestamps": events})
    path.write_text(path.read_text().removesuffix("]"))
    assert [names(request.span) for request in read_requests(path)] == [["trace 7", ["receive"], ["m v-1"]]]
    headers = [{"id": number, "model_name": "m", "parent_id": 3 - number} for number in (1, 2)]
    path = write(tmp_path / "t", *headers, *times(1, REQUEST_START=1), *times(2, REQUEST_START=1))
    assert read_requests(path) == []


def test_a_tree_has_a_line_for_each_span_with_its_bar() -> None:
    queue, compute = Span("queue", 1_000_000, 2_000_000), Span("compute_infer", 2_000_000, 4_000_000)
    root = Span("request r", 0, 4_000_000, [Span("m v1", 1_000_000, 4_000_000, [queue, compute]), Span("send", 4, 4)])
    assert draw(root) == (
        "request r                 4.000 ms  " + "█" * 40 + "\n"
        "├─ m v1                   3.000 ms  " + " " * 10 + "█" * 30 + "\n"
        "│  ├─ queue               1.000 ms  " + " " * 10 + "█" * 10 + "\n"
        "│  └─ compute_infer       2.000 ms  " + " " * 20 + "█" * 20 + "\n"
        "└─ send                   0.000 ms  █\n"
    )


def test_every_bar_is_visible_and_names_cannot_control_the_terminal() -> None:
    drawn = draw(Span("all", 100, 200, [Span("early", 0, 1), Span("late", 300, 400), Span("point", 199, 199)]))
    bars = [line.rpartition("ms  ")[2] for line in drawn.splitlines()]
    assert bars == ["█" * 40, "█", " " * 39 + "█", " " * 39 + "█"]
    assert draw(Span("a\x1b[2J\nb", 0, 1)).startswith("a\\u001b[2J\\nb ")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    objects: list[Any] = []
    for number, (request_id, end) in enumerate((("a", 20), ("b", 40), ("a", 30)), 1):
        objects.append({"id": number, "model_name": "m", "model_version": 1, "request_id": request_id})
        objects += times(number, REQUEST_START=10_000_000, REQUEST_END=end * 1_000_000)
    return write(tmp_path / "trace.json", *objects)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], ["10.000", "30.000", "20.000"]),
        (["--request=a"], ["10.000", "20.000"]),
        (["--slowest=2"], ["30.000", "20.000"]),
        (["--request=a", "--slowest=1"], ["20.000"]),
    ],
)
def test_requests_are_shown(
    file: Path, capsys: pytest.CaptureFixture[str], options: list[str], shown: list[str]
) -> None:
    assert main(["trace", *options, str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines if line.startswith("request")] == shown


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        *(
            (text, ["FILE"], "is not a trace file")
            for text in ("x", "[1]", '[{"id": 1, "timestamps": [{"name": "X"}]}]')
        ),
        *((text, ["FILE"], "has no traces with timestamps") for text in ("{}", "[]", '[{"id": 1, "model_name": "m"}]')),
        ("", ["missing"], "cannot be read"),
        ("", [], "one trace file is expected"),
        ("", ["FILE", "FILE"], "one trace file is expected"),
        ("", ["FILE", "--request=c"], "has no such request"),
        ("", ["FILE", "--slowest=0"], "out of bound"),
    ],
)
def test_other_files_and_wrong_arguments_are_refused(
    file: Path, capsys: pytest.CaptureFixture[str], text: str, options: list[str], reason: str
) -> None:
    if text:
        file.write_text(text)
    assert main(["trace", *[each.replace("FILE", str(file)) for each in options]]) == 1
    assert reason in capsys.readouterr().err
