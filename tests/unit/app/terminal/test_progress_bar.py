from __future__ import annotations

import io

from trident.app.terminal.downloads import ProgressBar, bar
from trident.core.lifecycle.state import DownloadPhase

HALF = DownloadPhase(bytes_done=512_000_000, bytes_total=1_024_000_000, objects_done=1, objects_total=3, seconds=4.0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_shows_bytes_objects_and_rate() -> None:
    assert bar(HALF) == "[###############...............]  50%  512 of 1024 MB, 1 of 3 objects, 128 MB/s"


def test_a_terminal_shows_one_line_which_is_cleared_at_the_end() -> None:
    terminal = Terminal()
    shown = ProgressBar(terminal)
    shown.show(None)
    assert terminal.getvalue() == ""
    shown.show(HALF)
    shown.show(HALF)
    shown.show(None)
    shown.show(None)
    assert terminal.getvalue() == f"\r\033[K{bar(HALF)}\r" * 2 + "\r\033[K"


def test_nothing_is_written_to_a_file() -> None:
    file = io.StringIO()
    ProgressBar(file).show(HALF)
    assert file.getvalue() == ""


def test_a_download_of_unknown_size_shows_0_percent() -> None:
    assert " 0%" in bar(DownloadPhase(bytes_done=0, bytes_total=0, objects_done=0, objects_total=0, seconds=0.0))
