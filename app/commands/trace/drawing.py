"""A tree of spans as text: a line for each, with its duration and a bar on the time of the whole request."""

from __future__ import annotations

from collections.abc import Iterator

from app.commands.trace.trace_file import Span
from core.observability.log_text import escaped

_BAR = 40
_NAME_AND_BAR = "{name:{width}}  {ms:>10.3f} ms  {bar}\n"


def draw(root: Span) -> str:
    """The tree, with a line break at its end. No line has a control character, whatever the names are."""
    lines = list(_lines(root, "", ""))
    width = max(len(name) for name, _ in lines)
    return "".join(
        _NAME_AND_BAR.format(name=name, width=width, ms=span.duration_ns / 1e6, bar=_bar(span, root))
        for name, span in lines
    )


def _lines(span: Span, first: str, others: str) -> Iterator[tuple[str, Span]]:
    """The name of each span, behind the branches of the tree; `others` stands before those below it."""
    yield first + escaped(span.name), span
    for index, each in enumerate(span.spans):
        is_last = index == len(span.spans) - 1
        yield from _lines(each, others + ("└─ " if is_last else "├─ "), others + ("   " if is_last else "│  "))


def _bar(span: Span, root: Span) -> str:
    """Where the span lies in `root`; at least one mark, however short it is."""
    total = max(1, root.duration_ns)
    start = min(_BAR - 1, max(0, (span.start_ns - root.start_ns) * _BAR // total))
    end = min(_BAR, max(start + 1, -(-(span.end_ns - root.start_ns) * _BAR // total)))
    return " " * start + "█" * (end - start)
