"""What is going on, on one line of the terminal, which is overwritten: a text, or a bar of downloads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from trident.core.lifecycle.state import DownloadPhase
from trident.core.observability.log import escaped, stderr, width

if TYPE_CHECKING:
    from trident.core.repository.progress import DownloadProgress

_WIDTH = 30


class ProgressBar:
    """Draws on `stream` if it is a terminal, otherwise does nothing. One thread."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._line = StatusLine(stream)

    def show(self, download: DownloadPhase | None) -> None:
        """Draw the progress of `download`; None: clear the line."""
        if download:
            self._line.show(bar(download))
        else:
            self._line.clear()


def bar(download: DownloadPhase) -> str:
    share = download.bytes_done / download.bytes_total if download.bytes_total else 0.0
    filled = round(share * _WIDTH)
    rate = download.bytes_done / download.seconds if download.seconds else 0.0
    return (
        f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {share:4.0%}  "
        f"{download.bytes_done / 1e6:.0f} of {download.bytes_total / 1e6:.0f} MB, "
        f"{download.objects_done} of {download.objects_total} objects, {rate / 1e6:.0f} MB/s"
    )


_REDRAW_S = 0.2


@contextmanager
def drawn(progress: DownloadProgress) -> Iterator[None]:
    """Draw `progress` on stderr, if that is a terminal, while the context lasts."""
    ended = threading.Event()
    shown = ProgressBar()

    def draw() -> None:
        while not ended.wait(_REDRAW_S):
            shown.show(DownloadPhase.of(progress.snapshot()))
        shown.show(None)

    thread = threading.Thread(target=draw, name="download progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


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
