"""bench/compare.py: the options, and a row of the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cases import CASES
from bench.compare import DEFAULT_CONNECTIONS, DOORS, GRPC_CASES, Row, markdown, parse
from bench.machine import LoadSeen
from bench.turns import Turn
from tests.project import ROOT

PAIRS = [
    {"this": Turn(200.0, 40.0), "other": Turn(100.0, 80.0)},
    {"this": Turn(300.0, 30.0), "other": Turn(100.0, 60.0)},
    {"this": Turn(400.0, 20.0), "other": Turn(100.0, 40.0)},
]


def test_a_row_has_medians_and_ratios_of_this_over_the_other() -> None:
    row = Row.of(CASES[0], 16, PAIRS, errors=0)
    assert (row.rates["this"], row.rates["other"], row.rate.median) == (300.0, 100.0, 3.0)
    assert (row.cpu_us["this"], row.cpu_us["other"], row.cpu.median) == (30.0, 60.0, 0.5)
    assert (row.rate.low, row.rate.high) == (2.0, 4.0)


def test_the_page_shows_ratios_intervals_and_the_machine() -> None:
    row = Row.of(CASES[0], 16, PAIRS, errors=0)
    page = markdown([row], LoadSeen(0.07, 0.0, 1.0), parse([str(ROOT)]))
    assert "3.000 [2.000, 4.000]" in page
    assert "requests/s 3.000, CPU per request 0.500" in page
    assert "other processes took 7%" in page


def test_doors_are_shown_but_are_no_part_of_the_means() -> None:
    row = Row.of(CASES[0], 16, PAIRS, errors=0)
    door = Row.of(DOORS[0].case, 16, [PAIRS[0]], errors=0)
    page = markdown([row], LoadSeen(0.07, 0.0, 1.0), parse([str(ROOT)]), [door])
    assert DOORS[0].case.title in page
    assert "requests/s 3.000, CPU per request 0.500" in page


def test_every_compared_case_exists() -> None:
    assert set(DEFAULT_CONNECTIONS) <= {case.key for case in (*CASES, *GRPC_CASES)}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "required"),
        (["{folder}"], "is not a checkout"),
        ([str(ROOT), "--only", "e"], "e: not among"),
        ([str(ROOT), "--pairs", "0"], "invalid"),
    ],
)
def test_parse_refuses_wrong_options(
    arguments: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse([text.format(folder=tmp_path) for text in arguments])
    assert problem in capsys.readouterr().err
