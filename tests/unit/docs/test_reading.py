"""docs/reading.md names the files of the server's centre, with their lines, and the rest as parts that one may skip."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.size import PRODUCT, count_lines, python_files, spine

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "reading.md").read_text()
CENTRE = spine(ROOT)
LINES = {name: count_lines((ROOT / name).read_text()) for name in CENTRE if (ROOT / name).is_file()}


def test_documented_centre_files_exist_with_about_the_documented_lines() -> None:
    wrong = {
        name: LINES.get(name) for name, lines in CENTRE.items() if abs(LINES.get(name, -1000) - lines) > lines / 10
    }
    assert wrong == {}, "run: python -m docs.lists"


def test_the_centre_is_small() -> None:
    assert sum(LINES.values()) < 20_000


def test_every_file_is_in_the_centre_or_in_a_part_that_one_may_skip() -> None:
    parts = [
        name
        for row in re.findall(r"^\| [^|`]+ \| (`[^|]+) \|", PAGE, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", row)
    ]
    assert [name for name in parts if not (ROOT / name).exists()] == []
    files = [path.relative_to(ROOT).as_posix() for top in PRODUCT for path in python_files(ROOT, top)]
    skipped = re.compile("|".join(f"{re.escape(name)}(/|$)" for name in parts))
    left = [name for name in files if name not in CENTRE and not skipped.match(name) and "__init__" not in name]
    assert left == []


@pytest.mark.parametrize("folder", sorted(set(re.findall(r"`(tests/[^`]+)`", PAGE))))
def test_the_folders_of_tests_exist(folder: str) -> None:
    assert (ROOT / folder).is_dir()
