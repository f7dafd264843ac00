"""A progress bar for the downloads at startup: one line of the terminal, which is overwritten."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from trident.app.terminal.status_line import StatusLine
from trident.core.lifecycle.state import DownloadPhase

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
    from trident.core.lifecycle.state import DownloadPhase

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
