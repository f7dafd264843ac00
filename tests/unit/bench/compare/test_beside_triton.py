"""bench/compare.py: README's table beside Triton."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.cases import CASES
from bench.compare import CONNECTIONS as DOOR_CONNECTIONS
from bench.compare import DEFAULT_CONNECTIONS, DOORS, MARKS, THEN, BesideTriton, Gain, doors_text, readme_text
from bench.results import RESULTS
from bench.turns import Ratio
from tests.project import ROOT

TITLE = CASES[0].title
DOOR = DOORS[0].case.title


def run() -> BesideTriton:
    cell = (TITLE, 16)
    return BesideTriton(
        Path("then.md"), "abc", {cell: 30_105.0}, {cell: 0.8}, {cell: 0.5}, {(THEN.title, 16): 20.0}, {(DOOR, 16): 10.0}
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
    assert [cell for cell in measured if cell[1] not in DEFAULT_CONNECTIONS[titles[cell[0]]]] == []


def test_a_door_is_compared_through_the_binary_requests_of_then() -> None:
    text = doors_text(run(), [Gain(DOOR, 16, Ratio(1.5, 1.4, 1.6), Ratio(0.6, 0.5, 0.7))])
    row = next(line for line in text.splitlines() if line.startswith(f"| {DOOR}"))
    assert [cell.strip() for cell in row.split("|")[2:-1]] == ["16", "10.0", "3.00"]


def test_every_door_of_triton_was_measured_beside_then() -> None:
    found = BesideTriton.newest(RESULTS)
    cells = {(door.case.title, connections) for door in DOORS for connections in DOOR_CONNECTIONS}
    assert set(found.doors) == cells
    assert {(THEN.title, connections) for connections in DOOR_CONNECTIONS} <= set(found.then)


def test_a_checkout_of_another_commit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="git worktree add FOLDER abc"):
        run().check(tmp_path)


def test_readme_carries_the_table_of_the_run_that_it_names() -> None:
    block = (ROOT / "README.md").read_text().partition(MARKS[0])[2].partition(MARKS[1])[0]
    page = re.findall(r"\((bench/results/[^)]+\.md)\)", block)[-1]
    rows = json.loads((ROOT / page).with_suffix(".json").read_text())["rows"]
    gains = [Gain(row["case"]["title"], row["connections"], Ratio(**row["rate"]), Ratio(**row["cpu"])) for row in rows]
    found = BesideTriton.newest(RESULTS)
    assert block.strip() == f"{readme_text(found, gains, page)}\n{doors_text(found, gains)}".strip()
