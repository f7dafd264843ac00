"""The report of breaches: behaviour that the real platform would not accept."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TextIO

from trident.core.observability.log import escaped, print_line

_MIB = 1 << 20
_MB = 1_000_000
_TENTH = 10


def seconds(duration: float) -> str:
    """A duration in seconds, as text with its unit."""
    return f"{duration * 1000:.0f} ms" if duration < 1 else f"{duration:g} s"


def size(count: int) -> str:
    """A number of bytes, as text with the largest unit in which it is a short number."""
    if count and count % _MIB == 0:
        return f"{count // _MIB} MiB"
    return f"{count / _MB:g} MB" if count >= _MB and count * _TENTH % _MB == 0 else f"{count} bytes"


_LONGEST = 500
_KINDS_AT_MOST = 1000


class BreachReport:
    """Collects breaches, one line each; a repeated line is only counted. Any thread."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Each new breach is written to `stream` at once, if one is given."""
        self._stream = stream
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, breach: str) -> None:
        """`breach` is a sentence without its full stop that names the limit and who broke it."""
        line = escaped(breach if len(breach) <= _LONGEST else f"{breach[:_LONGEST]}...")
        with self._lock:
            is_new = line not in self._counts
            if is_new and len(self._counts) >= _KINDS_AT_MOST:
                return
            self._counts[line] += 1
        if is_new and self._stream is not None:
            print_line(f"breach: {line}", self._stream)

    @property
    def breaches(self) -> dict[str, int]:
        """The count of each breach, in the order of their first occurrence."""
        with self._lock:
            return dict(self._counts)

    def text(self) -> str:
        """The final report, for a person."""
        found = self.breaches
        if not found:
            return "the container kept all limits of the platform\n"
        lines = [f"  {line}{f' ({count} times)' if count > 1 else ''}" for line, count in found.items()]
        return "\n".join([f"{len(found)} breach{'es' if len(found) > 1 else ''} of the platform's limits:", *lines, ""])


class Interrupted(Exception):
    """The emulator was told to stop before the model's files were in place."""
