from __future__ import annotations

from app.terminal.console_tables import ModelRow, addresses_table, models_table, options_table, table


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
    lines = models_table([ModelRow("m", "1", "UNAVAILABLE", reason="first\nE0101 second\n\nthird\n")]).split("\n")
    assert all(line[0] in "+|" and line[-1] in "+|" for line in lines)
    assert len({len(line) for line in lines}) == 1
    assert [line.split("|")[-2].strip() for line in lines[3:-1]] == ["first", "E0101 second", "", "third"]
    assert [line.split("|")[1].strip() for line in lines[3:-1]] == ["m", "", "", ""]


def test_control_characters_in_a_cell_are_escaped() -> None:
    text = options_table([("log-file", "a\rb\x1b[2Kc\u2028d", "flag")])
    assert "a\\rb\\u001b[2Kc\\u2028d" in text
    assert text.isprintable() or set(text) - {"\n"} == {c for c in text if c.isprintable()}


def test_a_long_reason_is_wrapped_at_blanks() -> None:
    reason = "word " * 100 + "x" * 200
    lines = models_table([ModelRow("m", "1", "UNAVAILABLE", "", "", reason)]).split("\n")
    cells = [line.split("|")[-2].strip() for line in lines[3:-1]]
    assert " ".join(cells) == reason
    assert len(cells) > 4
