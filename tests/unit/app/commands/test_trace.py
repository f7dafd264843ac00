"""`trident trace`: the file that it reads, and what it draws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trident.app.cli import main
from trident.app.commands.trace import Span, draw, read_requests


def names(span: Span) -> list[Any]:
    return [span.name, *map(names, span.spans)]


def write(path: Path, *objects: Any) -> Path:
    path.write_text(json.dumps(objects))
    return path


def times(number: int, **events: int) -> list[dict[str, Any]]:
    return [{"id": number, "timestamps": [{"name": name, "ns": ns}]} for name, ns in events.items()]


STEP = {"QUEUE_START": 12, "COMPUTE_START": 13, "COMPUTE_INPUT_END": 14, "COMPUTE_OUTPUT_START": 15, "COMPUTE_END": 16}


def test_an_ensemble_in_any_order(tmp_path: Path) -> None:
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


def test_files_of_triton_those_that_are_still_written_and_parents_in_a_circle(tmp_path: Path) -> None:
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


def test_every_bar_is_seen_and_no_name_changes_the_terminal() -> None:
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
        *((text, ["FILE"], "is no trace file") for text in ("x", "[1]", '[{"id": 1, "timestamps": [{"name": "X"}]}]')),
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
