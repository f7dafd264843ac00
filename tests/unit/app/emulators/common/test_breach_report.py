from __future__ import annotations

import io

from trident.app.emulators.report import BreachReport


def test_an_empty_report_says_so() -> None:
    report = BreachReport()
    assert report.breaches == {}
    assert report.text() == "the container kept all limits of the platform\n"


def test_a_repeated_breach_is_written_once_and_counted() -> None:
    told = io.StringIO()
    report = BreachReport(told)
    for breach in ("late", "late", "rude"):
        report.add(breach)
    assert told.getvalue() == "breach: late\nbreach: rude\n"
    assert report.breaches == {"late": 2, "rude": 1}
    assert report.text() == "2 breaches of the platform's limits:\n  late (2 times)\n  rude\n"


def test_text_of_the_container_cannot_forge_a_line() -> None:
    report = BreachReport()
    report.add("it said\nbreach: none\x1b[2J" + "!" * 10_000)
    (line,) = report.breaches
    assert "\n" not in line
    assert "\x1b" not in line
    assert len(line) < 600
