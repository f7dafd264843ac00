"""One line of the terminal that says what is going on, and is overwritten."""

from __future__ import annotations

from typing import TextIO

from trident.core.observability.log import escaped, stderr, width

_CLEAR = "\r\033[K"


class StatusLine:
    """Draws on `stream`, by default stderr, if it is a terminal; otherwise does nothing. One thread."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or stderr()
        self._enabled = self._stream.isatty()
        self._drawn = False

    def show(self, text: str) -> None:
        if self._enabled:
            # The cursor returns to the start of the line, so that a log line overwrites it.
            self._stream.write(f"{_CLEAR}{escaped(text)[: width() - 1]}\r")
            self._stream.flush()
            self._drawn = True

    def clear(self) -> None:
        if self._drawn:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._drawn = False
