"""Two checkouts: the options and what is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cases import ADD_SUB_JSON, CASES
from bench.compare import (
    CONNECTIONS,
    STREAM,
    UNARY,
    markdown,
    parse,
)
from bench.machine import MachineLoad
from bench.results import Comparison, Turn
from tests.project import ROOT

TITLE = ADD_SUB_JSON.title


def row(title: str = TITLE) -> Comparison:
    pairs = [{"this": Turn(100.0 * n, 40.0), "other": Turn(100.0, 80.0)} for n in (2, 3, 4)]
    return Comparison(title, 16, pairs, errors=0)


def test_the_page_shows_ratios_intervals_and_the_machine() -> None:
    page = markdown([row()], MachineLoad(0.07, 0.0, 1.0), parse([str(ROOT)]))
    assert "3.000 [2.000, 4.000]" in page
    assert "requests/s 3.000, CPU per request 0.500" in page
    assert "other processes took 7%" in page


def test_every_compared_case_exists() -> None:
    assert set(CONNECTIONS) <= {case.key for case in (*CASES, UNARY, STREAM)}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "required"),
        (["{folder}"], "is not a checkout"),
        ([str(ROOT), "--only", "e"], "unknown e; expected some of"),
        ([str(ROOT), "--pairs", "0"], "invalid"),
    ],
)
def test_parse_refuses_wrong_options(
    arguments: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse([text.format(folder=tmp_path) for text in arguments])
    assert problem in capsys.readouterr().err
