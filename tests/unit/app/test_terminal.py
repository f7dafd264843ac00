"""Tables, progress bars and reports for a person."""

from __future__ import annotations

import io
import logging
import shlex
from typing import Any

import pytest

from trident.app.settings.reading import read_settings
from trident.app.terminal import (
    ModelRow,
    ProgressBar,
    bar,
    log_first_request,
    log_services,
    log_settings,
    models_table,
    table,
)
from trident.core.config.spec import InputSpec, ModelSpec
from trident.core.inference.tensors import BY_NAME
from trident.core.lifecycle.state import DownloadPhase


def test_a_table_has_the_borders_of_tritonservers_tables() -> None:
    assert table(("Model", "Version"), [("simple", "1"), ("a", "12")]).split("\n") == [
        "+--------+---------+",
        "| Model  | Version |",
        "+--------+---------+",
        "| simple | 1       |",
        "| a      | 12      |",
        "+--------+---------+",
    ]
    assert len(table(("Service", "Address"), []).split("\n")) == 4


def test_a_cell_keeps_the_table_whole() -> None:
    lines = table(("Option", "Value", "From"), [("log-file", "first\nE0101 second\n\nthird\n", "flag")]).split("\n")
    assert len({len(line) for line in lines}) == 1
    assert [line.split("|")[2].strip() for line in lines[3:-1]] == ["first", "E0101 second", "", "third"]
    assert [line.split("|")[1].strip() for line in lines[3:-1]] == ["log-file", "", "", ""]
    assert "a\\rb\\u001b[2Kc\\u2028d" in table(("Value",), [("a\rb\x1b[2Kc\u2028d",)])


def test_the_reasons_of_models_are_below_their_table() -> None:
    reason = "first " + "word " * 30 + "\nE0101 second\n"
    lines = models_table([ModelRow("m", "1", "UNAVAILABLE", reason=reason), ModelRow("n", "1", "READY")], 80).split(
        "\n"
    )
    assert lines[6].startswith("| m 1: first word word")
    assert lines[-1] == "|   E0101 second"
    assert all(line.startswith(("|", "+")) and len(line) <= 80 for line in lines)


@pytest.mark.parametrize("width", [60, 80, 250])
def test_a_table_is_no_wider_than_the_terminal(width: int) -> None:
    path = "/opt/models/" + "x" * 150
    rows = [("model-repository", path, "flag"), ("http-port", "8000", "flag")]
    lines = table(("Option", "Value", "From"), rows, width)
    assert {len(line) for line in lines.split("\n")} == {min(width, 192)}
    assert "".join(line.split("|")[2].strip() for line in lines.split("\n")[3:-2]) == path


HALF = DownloadPhase(bytes_done=512_000_000, bytes_total=1_024_000_000, objects_done=1, objects_total=3, seconds=4.0)
HALF_BAR = "[###############...............]  50%  512 of 1024 MB, 1 of 3 objects, 128 MB/s"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "shown"), [(io.StringIO(), ""), (Terminal(), f"\r\033[K{HALF_BAR}\r" * 2 + "\r\033[K")]
)
def test_a_terminal_shows_one_line_which_is_cleared_at_the_end(stream: io.StringIO, shown: str) -> None:
    progress = ProgressBar(stream)
    for phase in (None, HALF, HALF, None, None):
        progress.show(phase)
    assert stream.getvalue() == shown
    assert " 0%" in bar(DownloadPhase(bytes_done=0, bytes_total=0, objects_done=0, objects_total=0, seconds=0.0))


REPOSITORY = "--model-repository=/models"


def test_settings_and_addresses_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_settings(read_settings([REPOSITORY, "--http-port=9"], {"AIP_MODE": "PREDICTION"}))
    given, platforms = (record.__dict__["table"] for record in caplog.records)
    assert caplog.messages == ["options that are not at their defaults", "Vertex AI's settings"]
    assert ("http-port" in given, "metrics-port" in given, "predict" in platforms) == (True, False, True)
    log_services(read_settings([REPOSITORY], {}))
    assert "Started HTTPService at 0.0.0.0:8000" in caplog.messages


def spec(name: str, *dims: int, datatype: str = "FP32", **more: Any) -> ModelSpec:
    given = InputSpec(name="IN", datatype=BY_NAME[datatype], dims=dims)
    return ModelSpec(
        name=name, version=1, platform="", backend="", max_batch_size=4, inputs={"IN": given}, outputs={}, **more
    )


@pytest.mark.parametrize(
    ("options", "specs", "words"),
    [
        (
            [],
            [spec("large", 3, 224, 224), spec("it's", -1, 2)],
            ["http://localhost:8000/v2/models/it's/infer", "-d", "{BODY}"],
        ),
        (["--http-address=::1", "--http-port=9"], [spec("m", 2, datatype="FP16")], ["http://[::1]:9/v2"]),
        (["--http-address=10.0.0.1"], [], ["http://10.0.0.1:8000/v2"]),
    ],
)
def test_the_report_ends_with_a_request_to_copy(
    options: list[str], specs: list[ModelSpec], words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    log_first_request(read_settings([REPOSITORY, *options], {}), specs)
    body = '{"inputs":[{"name":"IN","datatype":"FP32","shape":[1,1,2],"data":[1,1]}]}'
    expected = [word.replace("{BODY}", body) for word in words]
    log_first_request(read_settings([REPOSITORY, "--allow-http=false"], {}), specs)
    (record,) = caplog.records
    assert shlex.split(record.__dict__["command"]) == ["curl", "-s", *expected]
