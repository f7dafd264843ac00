"""The doctor's report as text and as JSON."""

from __future__ import annotations

import json

import pytest

from trident.app.commands.doctor.report import Level, Line, has_failed, json_report, size_text, text_report

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


def test_the_json_report_has_the_counts_and_every_line() -> None:
    report = json.loads(json_report(LINES))
    assert (report["failed"], report["warnings"]) == (1, 1)
    expected = {"area": "Limits", "check": "open files", "level": "warning", "text": "256", "cure": "raise it"}
    assert report["lines"][1] == expected


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
