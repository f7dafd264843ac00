"""What `trident doctor URL` says about the answers of a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trident.app.commands.doctor.report import Level, Line
from trident.app.commands.doctor.server import server_lines
from trident.app.commands.server_answers import Answer, NoAnswer

URL = "http://host:8000"
DATE = "Wed, 25 Nov 2026 12:00:00 GMT"
DATE_S = 1795608000.0
METADATA = {"name": "triton", "version": "2.60.0", "extensions": ["statistics"]}
DURATION = {"count": 4, "ns": 8_000_000}
STATS = {
    "name": "m",
    "version": "1",
    "inference_stats": {
        "success": DURATION,
        "fail": {"count": 1, "ns": 5},
        "queue": DURATION,
        "compute_infer": DURATION,
    },
}
ANSWERS: dict[str, tuple[int, Any]] = {
    "/v2": (200, METADATA),
    "/v2/health/live": (200, None),
    "/v2/health/ready?verbose": (200, None),
    "/v2/repository/index": (200, [{"name": "m", "version": "1", "state": "READY"}]),
    "/v2/models/stats": (200, {"model_stats": [STATS]}),
    "/metrics": (200, "# TYPE a counter\na 1\n"),
}


def lines(now: float = DATE_S, **answers: tuple[int, Any]) -> dict[str, Line]:
    """The lines by their check, of a server with ANSWERS of which some are replaced by the last part of their path."""
    replaced = {path: answers.get(path.rpartition("/")[2].partition("?")[0], told) for path, told in ANSWERS.items()}

    def ask(method: str, url: str) -> Answer:
        status, told = replaced[url.removeprefix(URL).removeprefix("http://host:8002")]
        if not status:
            raise NoAnswer("Connection refused")
        body = told.encode() if isinstance(told, str) else b"" if told is None else json.dumps(told).encode()
        return Answer(status, body, {"Date": DATE}, 0.001)

    return {line.check: line for line in server_lines(f"{URL}/", 8002, ask, lambda: now)}


def test_a_server_that_serves_has_a_line_for_each_part_and_none_has_failed() -> None:
    found = lines()
    assert {line.level for line in found.values()} == {Level.OK}
    assert {check: line.text for check, line in found.items()} == {
        "live": "answers in 1.0 ms, the median of 5",
        "ready": "every model that the start had to load is served",
        "version": found["version"].text,
        "clock": "agrees with this machine's",
        "models": "1 of 1 versions are ready",
        "m 1": "4 answered, 2.00 ms each (queue 2.00 ms, compute_infer 2.00 ms); 1 failed",
        "metrics": "1 metrics at http://host:8002/metrics",
    }
    assert found["version"].text.startswith("2.60.0, name 'triton'; this command is ")


def test_a_server_that_is_not_ready_fails_with_its_reasons() -> None:
    body = {"phase": "failed", "loaded": 1, "total": 2, "failures": {"m": "no file"}}
    index = [{"name": "m", "state": "UNAVAILABLE", "reason": "no file"}, {"name": "n"}]
    found = lines(ready=(400, body), index=(200, index))
    assert (found["ready"].level, found["ready"].text) == (Level.FAILED, "failed; 1 of 2 models loaded; m: no file")
    assert (found["m"].level, found["m"].text) == (Level.WARNING, "UNAVAILABLE: no file")
    assert "n" not in found


@pytest.mark.parametrize(
    ("answers", "check", "level", "text"),
    [
        ({"v2": (0, None)}, "live", Level.FAILED, "no answer: Connection refused"),
        ({"v2": (200, "a page of metrics")}, "protocol", Level.FAILED, f"{URL}/v2 is not answered as Triton's"),
        (
            {"index": (401, None)},
            "models",
            Level.WARNING,
            "it is not open to callers without a token or a key (HTTP 401)",
        ),
        ({"metrics": (0, None)}, "metrics", Level.WARNING, "no answer at http://host:8002/metrics: Connection refused"),
        ({"live": (400, {"error": "gone"})}, "live", Level.FAILED, "HTTP 400: gone"),
    ],
)
def test_what_is_wrong_has_a_line_with_a_cure(
    answers: dict[str, tuple[int, Any]], check: str, level: Level, text: str
) -> None:
    line = lines(**answers)[check]
    assert line.level is level
    assert line.text.startswith(text)
    assert line.cure


def test_a_clock_that_differs_is_a_warning() -> None:
    assert lines(DATE_S - 100)["clock"].text == "this machine's is 100 s behind the server's"
