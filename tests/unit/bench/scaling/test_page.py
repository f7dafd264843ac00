"""The measured parts of the page about scaling are replaced, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.scaling import PAGE, Costs, Measured, Seen, Shape, write_page


def seen(*rates: float, engine_us: float = 20.0) -> Seen:
    made = Seen()
    for rate in rates:
        work = [rate * engine_us / 2e6] * 2
        made.take(int(rate), 1.0, work, [rate * 40 / 1e6], rate * 12 / 1e6)
    return made


def measured(rates: tuple[float, ...]) -> Measured:
    pair = {Shape(2, 2): seen(*rates, engine_us=25.0), Shape(2, 1): seen(1000, 2000)}
    return Measured("digits", Costs(20.0, 40.0), {Shape(1, 1): seen(1000)}, pair, pair)


def test_the_measured_parts_of_the_page_are_replaced(tmp_path: Path) -> None:
    page = Path(shutil.copy(PAGE, tmp_path))
    write_page([measured((7000, 7000))], {}, [4], 0.1, None, page)
    heavy = {Shape(2, 1): seen(400, engine_us=2500.0), Shape(2, 2): seen(700, engine_us=2600.0)}
    write_page([measured((1800, 3800))], heavy, [4, 64], 0.1, None, page)
    text = page.read_text()
    rows = [" ".join(line.split()) for line in text.splitlines() if line.startswith("| digits")]
    assert rows == [
        "| digits | 1 | 20.0 | 40.0 |",
        "| digits | 4 | 50,000 | engines | 2 + 3 | 66,667 |",
        "| digits | 64 | 50,000 | engines | 22 + 43 | 1,066,667 |",
        "| digits | 1 | 1,500 | 1 | |",
        "| digits | 2 | 2,800 | 1.85 | 1.80 to 1.90 |",
        "| digits | 1 | 1,500 | 1 | 20.0 | 40.0 | 12.0 | 0.11 |",
        "| digits | 2 | 2,800 | 1.85 | 25.0 | 40.0 | 12.0 | 0.22 |",
    ]
    assert "7,000" not in text
    assert "(20.0 + 40.0 + 12.0 µs)" in text
    assert "as many as one; measured were 1.85." in text
    (row,) = (" ".join(line.split()) for line in text.splitlines() if line.startswith("| 2 "))
    assert row.startswith("| 2 | 700 | 2,600 | 40.0 | 12.0 | 1.75 | 1.75 to 1.75 |")
    headings = [line for line in PAGE.read_text().splitlines() if line.startswith("#")]
    assert [line for line in text.splitlines() if line.startswith("#")] == headings


def test_a_page_without_a_marker_is_not_touched(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- measured: costs -->\nno end\n")
    with pytest.raises(ValueError, match="measured: costs"):
        write_page([measured((1, 1))], {}, [4], 0.1, None, page)
    assert page.read_text() == "<!-- measured: costs -->\nno end\n"
