"""Two checkouts: the options, the page, and README's table beside Triton."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.cases import ADD_SUB, ADD_SUB_JSON, CASES
from bench.compare import (
    CONNECTIONS,
    MARKS,
    SINCE,
    SMALL,
    STREAM,
    UNARY,
    BesideTriton,
    Gain,
    markdown,
    parse,
    readme_text,
    since_text,
)
from bench.machine import MachineLoad
from bench.results import RESULTS, Comparison, Ratio, Turn
from tests.project import ROOT

TITLE = ADD_SUB_JSON.title
NEW = SINCE[0][0].title


def run() -> BesideTriton:
    cell = (TITLE, 16)
    return BesideTriton(
        Path("then.md"),
        "abc",
        {cell: 30_105.0},
        {cell: 0.8},
        {cell: 0.5},
        {(ADD_SUB.title, 16): 20.0},
        {(NEW, 16): 10.0},
    )


def test_a_row_multiplies_the_ratios_of_then_by_the_gains_since() -> None:
    gains = [
        Gain(TITLE, 16, Ratio(1.5, 1.4, 1.6), Ratio(0.6, 0.5, 0.7)),
        Gain(TITLE, 17, Ratio(9, 9, 9), Ratio(9, 9, 9)),
    ]
    text = readme_text(run(), gains, "since.md")
    row = next(line for line in text.splitlines() if line.startswith(f"| {TITLE}"))
    assert [cell.strip() for cell in row.split("|")[2:-1]] == ["16", "30,105", "0.80", "1.50", "1.20", "0.30"]
    assert "1.20 times Triton's requests/s, 0.30 of its CPU" in text
    assert "| 17 " not in text


def test_every_cell_that_was_measured_beside_triton_is_compared() -> None:
    titles = {case.title: case.key for case in CASES}
    measured = BesideTriton.newest(RESULTS).rates
    assert len(measured) == 18
    assert [cell for cell in measured if cell[1] not in CONNECTIONS[titles[cell[0]]]] == []


def test_what_is_new_since_is_compared_with_the_binary_requests_of_then() -> None:
    text = since_text(run(), [Gain(NEW, 16, Ratio(1.5, 1.4, 1.6), Ratio(0.6, 0.5, 0.7))])
    row = next(line for line in text.splitlines() if line.startswith(f"| {NEW}"))
    assert [cell.strip() for cell in row.split("|")[2:-1]] == ["16", "10.0", "3.00"]


def test_triton_was_measured_for_everything_that_is_new_since() -> None:
    found = BesideTriton.newest(RESULTS)
    cells = {(case.title, connections) for case, _, _ in SINCE for connections in SMALL}
    assert set(found.since) == cells
    assert {(ADD_SUB.title, connections) for connections in SMALL} <= set(found.then)


def test_a_checkout_of_another_commit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="git worktree add FOLDER abc"):
        run().check(tmp_path)


def test_readme_carries_the_table_of_the_run_that_it_names() -> None:
    block = (ROOT / "README.md").read_text().partition(MARKS[0])[2].partition(MARKS[1])[0]
    page = re.findall(r"\((bench/results/[^)]+\.md)\)", block)[-1]
    rows = json.loads((ROOT / page).with_suffix(".json").read_text())["rows"]
    gains = [Gain(row["case"]["title"], row["connections"], Ratio(**row["rate"]), Ratio(**row["cpu"])) for row in rows]
    found = BesideTriton.newest(RESULTS)
    assert block.strip() == f"{readme_text(found, gains, page)}\n{since_text(found, gains)}".strip()


def row(title: str = TITLE) -> Comparison:
    pairs = [{"this": Turn(100.0 * n, 40.0), "other": Turn(100.0, 80.0)} for n in (2, 3, 4)]
    return Comparison(title, 16, pairs, errors=0)


def test_the_page_shows_ratios_intervals_and_the_machine() -> None:
    page = markdown([row()], MachineLoad(0.07, 0.0, 1.0), parse([str(ROOT)]), [row(NEW)])
    assert "3.000 [2.000, 4.000]" in page
    # What is new since is shown but is no part of the means.
    assert NEW in page
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
