"""Draws the progress of downloads on the terminal while they run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from app.terminal.progress_bar import ProgressBar

if TYPE_CHECKING:
    from core.repository.download.progress import DownloadProgress

_REDRAW_S = 0.2


@contextmanager
def drawn(progress: DownloadProgress) -> Iterator[None]:
    """Draw `progress` on stderr, if that is a terminal, while the context lasts."""
    from core.lifecycle.serving_phase import DownloadPhase

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
