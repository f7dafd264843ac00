from __future__ import annotations

import pytest

from trident.app.terminal.report import ModelRow, addresses_table, models_table, options_table, table


def test_a_table_has_the_borders_of_tritonservers_tables() -> None:
    assert table(("Model", "Version"), [("simple", "1"), ("a", "12")]).split("\n") == [
        "+--------+---------+",
        "| Model  | Version |",
        "+--------+---------+",
        "| simple | 1       |",
        "| a      | 12      |",
        "+--------+---------+",
    ]


def test_a_table_without_rows_has_only_its_head() -> None:
    assert addresses_table([]).split("\n") == [
        "+---------+---------+",
        "| Service | Address |",
        "+---------+---------+",
        "+---------+---------+",
    ]


def test_line_breaks_in_a_cell_stay_within_the_borders() -> None:
    lines = options_table([("log-file", "first\nE0101 second\n\nthird\n", "flag")]).split("\n")
    assert len({len(line) for line in lines}) == 1
    assert [line.split("|")[2].strip() for line in lines[3:-1]] == ["first", "E0101 second", "", "third"]
    assert [line.split("|")[1].strip() for line in lines[3:-1]] == ["log-file", "", "", ""]


def test_the_reasons_of_models_are_below_their_table() -> None:
    reason = "first " + "word " * 30 + "\nE0101 second\n"
    lines = models_table([ModelRow("m", "1", "UNAVAILABLE", reason=reason), ModelRow("n", "1", "READY")], 80).split(
        "\n"
    )
    assert lines[6].startswith("| m 1: first word word")
    assert lines[-1] == "|   E0101 second"
    assert all(line.startswith(("|", "+")) and len(line) <= 80 for line in lines)


def test_control_characters_in_a_cell_are_escaped() -> None:
    text = options_table([("log-file", "a\rb\x1b[2Kc\u2028d", "flag")])
    assert "a\\rb\\u001b[2Kc\\u2028d" in text
    assert text.isprintable() or set(text) - {"\n"} == {c for c in text if c.isprintable()}


@pytest.mark.parametrize("width", [60, 80, 250])
def test_a_table_is_no_wider_than_the_terminal(width: int) -> None:
    path = "/opt/models/" + "x" * 150
    rows = [("model-repository", path, "flag"), ("http-port", "8000", "flag")]
    lines = table(("Option", "Value", "From"), rows, width)
    assert {len(line) for line in lines.split("\n")} == {min(width, 192)}
    assert "".join(line.split("|")[2].strip() for line in lines.split("\n")[3:-2]) == path
