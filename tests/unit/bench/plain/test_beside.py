"""bench/plain.py: the page of a run beside another server."""

from __future__ import annotations

import math

import pytest

from bench.plain import Cell, Results, beside_markdown, geometric_mean


def cell(server: str, rate: float, cpu_us: float, errors: int = 0) -> Cell:
    return Cell("a-json", server, 16, 100, rate, 1.0, 2.0, errors, cpu_us, 1.0, 80.0)


def results(*cells: Cell) -> Results:
    about: dict[str, object] = {"cpu": "c", "cores": 2, "memory_gb": 1.0, "kernel": "k", "python": "3", "packages": {}}
    return Results("2026-01-01", about, 3, 3, list(cells), beside="serve {repo} {http}")


def test_a_row_holds_both_servers_and_their_ratios() -> None:
    page = beside_markdown(results(cell("trident", 3000, 50, 1), cell("other", 2000, 100, 2)))
    row = next(line for line in page.splitlines() if line.startswith("| add/sub"))
    assert [text.strip() for text in row.split("|")[2:-1]] == [
        "16",
        "2,000",
        "3,000",
        "1.50",
        "100",
        "50.0",
        "0.50",
        "3",
    ]
    assert "requests/s 1.50, CPU per request 0.50" in page
    assert "`serve {repo} {http}`" in page


def test_a_case_without_the_other_server_has_no_row() -> None:
    assert "| add/sub" not in beside_markdown(results(cell("trident", 3000, 50)))


@pytest.mark.parametrize(("values", "mean"), [([2.0, 8.0], 4.0), ([5.0], 5.0), ([0.0, 5.0], 5.0)])
def test_geometric_mean(values: list[float], mean: float) -> None:
    assert geometric_mean(values) == pytest.approx(mean)


def test_geometric_mean_of_nothing_is_not_a_number() -> None:
    assert math.isnan(geometric_mean([]))
