from __future__ import annotations

import json
from pathlib import Path

import pytest

from trident.app.cli import main


@pytest.fixture
def file(tmp_path: Path) -> Path:
    objects = []
    for number, (request_id, end) in enumerate((("a", 20), ("b", 40), ("a", 30)), 1):
        objects.append({"id": number, "model_name": "m", "model_version": 1, "request_id": request_id})
        for name, ns in (("REQUEST_START", 10), ("REQUEST_END", end)):
            objects.append({"id": number, "timestamps": [{"name": name, "ns": ns * 1_000_000}]})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(objects))
    return path


def durations(text: str) -> list[str]:
    return [line.split()[2] for line in text.splitlines() if line.startswith("request")]


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
    assert durations(capsys.readouterr().out) == shown


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "one trace file is expected"),
        (["FILE", "FILE"], "one trace file is expected"),
        (["FILE", "--request=c"], "has no such request"),
        (["FILE", "--slowest=0"], "out of bound"),
    ],
)
def test_wrong_arguments_are_refused(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert main(["trace", *[each.replace("FILE", str(file)) for each in arguments]]) == 1
    assert reason in capsys.readouterr().err
