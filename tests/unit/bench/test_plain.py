"""Plain HTTP: the options, and the page of a run beside another server."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.plain import BESIDE_KEYS, KEYS, Cell, Results, beside_markdown, parse
from tests.project import ROOT

OTHER = "tritonserver --model-repository={repo} --http-port={http}"


def test_a_run_is_beside_flask_unless_another_server_is_named() -> None:
    options = parse([])
    assert (options.only, options.servers, options.beside) == (KEYS, ["trident", "flask"], None)
    options = parse(["--beside", OTHER])
    assert (options.only, options.servers, options.beside) == (BESIDE_KEYS, ["trident"], OTHER)
    assert "| add/sub" not in beside_markdown(results(cell("trident", 3000, 50)))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--beside", "tritonserver --http-port={http}"], "lacks {repo}"),
        (["--beside", "tritonserver"], "lacks {repo} and {http}"),
        (["--only", "a,z"], "unknown z; expected some of a"),
        (["--servers", "triton"], "unknown triton; expected some of trident"),
    ],
)
def test_parse_refuses_wrong_options(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)
    assert problem in capsys.readouterr().err


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


@pytest.mark.parametrize("path", sorted((ROOT / "bench/results").glob("*.md")), ids=lambda path: path.name)
def test_every_page_of_results_has_its_json(path: Path) -> None:
    assert path.with_suffix(".json").is_file()
