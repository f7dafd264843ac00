"""The lines of the report, and the report as text and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import groupby

from trident.app.terminal import counted
from trident.core.observability.log import escaped

_WIDTH = 100
_SHOWN = 5
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
OF_MACHINE = ("ready to serve", "this machine cannot serve this as it is")
OF_SERVER = ("the server serves", "the server does not serve as it should")


class Level(StrEnum):
    """How bad a line is. Only FAILED sets the exit status."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the page. Lines of one `area` stand together; `cure` says what to do about a line that is not OK."""

    area: str
    check: str
    level: Level
    text: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Area:
    """What makes the lines of one area."""

    name: str

    def line(self, level: Level, check: str, text: str, cure: str = "") -> Line:
        return Line(self.name, check, level, text, cure)

    def ok(self, check: str, text: str) -> Line:
        return self.line(Level.OK, check, text)

    def warning(self, check: str, text: str, cure: str) -> Line:
        return self.line(Level.WARNING, check, text, cure)

    def failed(self, check: str, text: str, cure: str) -> Line:
        return self.line(Level.FAILED, check, text, cure)


def text_report(lines: Sequence[Line], verdicts: tuple[str, str] = OF_MACHINE) -> str:
    """One block per area, at most 100 columns wide where blanks allow it, and the result in the last line.

    `verdicts` are its words if nothing has failed, and if something has.
    """
    blocks = [_block(area, list(found)) for area, found in groupby(lines, key=lambda line: line.area)]
    return "\n".join([*blocks, f"{_counts(lines)}: {verdicts[has_failed(lines)]}\n"])


def json_report(lines: Sequence[Line]) -> str:
    """A JSON object: the number of failed lines and of warnings, and every line."""
    counts = {"failed": _count(lines, Level.FAILED), "warnings": _count(lines, Level.WARNING)}
    return json.dumps({**counts, "lines": [asdict(line) for line in lines]}, indent=2) + "\n"


def has_failed(lines: Sequence[Line]) -> bool:
    return _count(lines, Level.FAILED) > 0


def _block(area: str, lines: Sequence[Line]) -> str:
    width = max(len(line.check) for line in lines)
    return "\n".join([escaped(area), *(text for line in lines for text in _texts(line, width))]) + "\n"


def _texts(line: Line, width: int) -> list[str]:
    mark = line.level.upper() if line.level is Level.FAILED else line.level
    first = f"  {mark:<7}  {line.check:<{width}}  "
    margin = " " * len(first)
    texts = _wrapped(line.text, first, margin)
    if line.cure:
        texts += _wrapped(line.cure, f"{margin}cure: ", f"{margin}      ")
    return texts


def _wrapped(text: str, first: str, margin: str) -> list[str]:
    # A long path or ARN stays whole, so that it can be copied.
    wrapper = textwrap.TextWrapper(_WIDTH, initial_indent=first, subsequent_indent=margin)
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return wrapper.wrap(escaped(text)) or [first.rstrip()]


def _counts(lines: Sequence[Line]) -> str:
    return f"{_count(lines, Level.FAILED)} failed, {counted(_count(lines, Level.WARNING), 'warning')}"


def _count(lines: Sequence[Line], level: Level) -> int:
    return sum(line.level is level for line in lines)


def size_text(count: int) -> str:
    """`count` bytes in the largest binary unit that fits, such as `1.5 GiB`."""
    power = min(max(0, count.bit_length() - 1) // 10, 4)
    value = count / 1024**power
    return f"{value:.3g} {_UNITS[power]}" if value < 999.5 else f"{value:.0f} {_UNITS[power]}"


def first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
