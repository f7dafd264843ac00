from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.app.commands.validate.test_command import _log_as_before  # noqa: F401
from trident.app.cli import main
from trident.app.commands.doctor.report import Level, Line, has_failed, size_text, text_report


@pytest.fixture
def free_port() -> list[str]:
    """Options for a server with one port, which nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return ["--http-address=127.0.0.1", f"--http-port={port}", "--allow-metrics=false", "--allow-grpc=false"]


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_machine_that_can_serve_has_status_0(
    shipped_models: Path, free_port: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(shipped_models), *free_port]) == 0
    page = capsys.readouterr().out
    assert f"Repository {shipped_models}\n" in page
    assert "every model would load" in page
    assert page.splitlines()[-1].endswith("ready to serve")


def test_a_failed_line_has_status_1_and_json_has_it_too(
    shipped_models: Path, taken: int, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"--model-repository={shipped_models}", "--http-address=127.0.0.1", f"--http-port={taken}"]
    assert main(["doctor", "--json", *options, "--allow-metrics=false", "--allow-grpc=false"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["failed"] == 1
    (failed,) = [line for line in report["lines"] if line["level"] == "failed"]
    assert (failed["area"], failed["check"]) == ("Ports", "HTTP")


def test_the_machine_alone_is_examined_without_a_repository(
    free_port: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *free_port]) == 0
    assert capsys.readouterr().out.startswith("Limits\n")


def test_every_repository_has_its_own_lines(
    shipped_models: Path, tmp_path: Path, free_port: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing"
    options = [f"--model-repository={each}" for each in (shipped_models, missing, "ftp://host/x")]
    assert main(["doctor", *options, *free_port]) == 1
    page = capsys.readouterr().out
    assert "every model would load" in page
    assert f"Repository {missing}\n  FAILED   models" in page
    assert "unknown storage ftp://" in page


def test_help_and_unknown_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--help"]) == 0
    assert "Usage: trident doctor [--json] [REPO ...]" in capsys.readouterr().out
    assert main(["doctor", "--jsn"]) == 1
    assert "unknown option" in capsys.readouterr().err


LINES = [
    Line("Limits", "CPU", Level.OK, "2 cores"),
    Line("Limits", "open files", Level.WARNING, "256", "raise it"),
    Line("Ports", "HTTP", Level.FAILED, "taken\x1b[2J by " + "word " * 30, "cure " * 30),
]


def test_the_page_has_a_block_for_each_area_and_the_result_at_the_end() -> None:
    assert text_report(LINES[:2]) == (
        "Limits\n"
        "  ok       CPU         2 cores\n"
        "  warning  open files  256\n"
        "                       cure: raise it\n"
        "\n"
        "0 failed, 1 warning: ready to serve\n"
    )
    assert text_report(LINES).endswith("\n1 failed, 1 warning: this machine cannot serve this as it is\n")


def test_the_page_fits_100_columns_and_shows_no_control_character() -> None:
    page = text_report(LINES)
    assert max(map(len, page.splitlines())) <= 100
    assert "  FAILED   HTTP  taken\\u001b[2J by word" in page
    assert "\x1b" not in page
    path = "/x" * 60
    assert path in text_report([Line("Repository", "models", Level.FAILED, f"cannot read {path}")])
    assert has_failed(LINES)
    assert not has_failed(LINES[:2])


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (1023 << 10, "1023 KiB"),
        (80 << 30, "80 GiB"),
        (5000 << 40, "5000 TiB"),
    ],
)
def test_a_size_has_the_largest_unit_that_fits(count: int, text: str) -> None:
    assert size_text(count) == text
