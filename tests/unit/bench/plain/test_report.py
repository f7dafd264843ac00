"""bench/plain.py: README carries the table of a run in bench/results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench import plain
from bench.plain import Results
from tests.project import ROOT

README = (ROOT / "README.md").read_text()


def test_readme_carries_the_table_of_the_run_that_it_names() -> None:
    block = README.partition(plain.MARKS[0])[2].partition(plain.MARKS[1])[0]
    full = re.findall(r"\((bench/results/[^)]+\.md)\)", block)[-1]
    results = Results.read((ROOT / full).with_suffix(".json"))
    assert block.strip() == plain.brief(results, full).strip()


@pytest.mark.parametrize("path", sorted((ROOT / "bench/results").glob("*.md")), ids=lambda path: path.name)
def test_every_page_of_results_has_its_json(path: Path) -> None:
    assert path.with_suffix(".json").is_file()
