from __future__ import annotations

from trident.app.commands.trace import Span, draw


def test_a_tree_has_a_line_for_each_span_with_its_bar() -> None:
    queue, compute = Span("queue", 1_000_000, 2_000_000), Span("compute_infer", 2_000_000, 4_000_000)
    root = Span("request r", 0, 4_000_000, [Span("m v1", 1_000_000, 4_000_000, [queue, compute]), Span("send", 4, 4)])
    assert draw(root) == (
        "request r                 4.000 ms  " + "█" * 40 + "\n"
        "├─ m v1                   3.000 ms  " + " " * 10 + "█" * 30 + "\n"
        "│  ├─ queue               1.000 ms  " + " " * 10 + "█" * 10 + "\n"
        "│  └─ compute_infer       2.000 ms  " + " " * 20 + "█" * 20 + "\n"
        "└─ send                   0.000 ms  █\n"
    )


def test_every_bar_is_seen_and_stays_in_its_place() -> None:
    drawn = draw(Span("all", 100, 200, [Span("early", 0, 1), Span("late", 300, 400), Span("point", 199, 199)]))
    bars = [line.rpartition("ms  ")[2] for line in drawn.splitlines()]
    assert bars == ["█" * 40, "█", " " * 39 + "█", " " * 39 + "█"]


def test_names_cannot_change_the_terminal() -> None:
    assert draw(Span("a\x1b[2J\nb", 0, 1)).startswith("a\\u001b[2J\\nb ")
