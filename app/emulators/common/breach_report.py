"""What was found that the real platform would not have put up with."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TextIO

from core.observability.console import print_line
from core.observability.log_text import escaped

_LONGEST = 500
_KINDS_AT_MOST = 1000


class BreachReport:
    """Collects breaches, one line each; a line that comes again is only counted. Any thread."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Each new breach is written to `stream` at once, if there is one."""
        self._stream = stream
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, breach: str) -> None:
        """`breach` is a sentence without its full stop, that names who broke which limit."""
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
        """How often each one was seen, in the order of their first time."""
        with self._lock:
            return dict(self._counts)

    def text(self) -> str:
        """The report for the end."""
        found = self.breaches
        if not found:
            return "the container kept all limits of the platform\n"
        lines = [f"  {line}{f' ({count} times)' if count > 1 else ''}" for line, count in found.items()]
        return "\n".join([f"{len(found)} breach{'es' if len(found) > 1 else ''} of the platform's limits:", *lines, ""])
