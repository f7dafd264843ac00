"""The file of the log: written line by line, and opened again when it was moved away or removed.

Several processes append to it. Each event is one write to the end of the file, so that no event is torn by another.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from core.errors import ConfigInvalid


class LogFile(logging.Handler):
    """The file at `path`. Raises ConfigInvalid if it cannot be opened.

    `on_failure` is told why events are lost, or the file is not opened again, each time.
    """

    def __init__(self, path: str, on_failure: Callable[[str], None]) -> None:
        super().__init__()
        self._path = path
        self._on_failure = on_failure
        self._is_asked = False
        self._is_torn = False
        try:
            self._descriptor = _open(path)
        except OSError as error:
            raise ConfigInvalid(f"cannot open the log file {path}: {error.strerror}") from error

    def ask_to_reopen(self) -> None:
        """Have the file at the path opened before the next event, or by `reopen_if_asked`. In a signal handler, too."""
        self._is_asked = True

    def reopen_if_asked(self) -> None:
        """Any thread."""
        with self.lock:  # type: ignore[union-attr]
            if self._is_asked:
                self._reopen()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n".encode("utf-8", "backslashreplace")
        except Exception:
            self.handleError(record)
            return
        # A file that was removed takes events with it: a link count of 0 says so in less than a microsecond.
        if self._is_asked or not os.fstat(self._descriptor).st_nlink:
            self._reopen()
        try:
            self._write(line)
        except OSError as error:
            self._on_failure(f"the log cannot be written: {error}; its events are lost")

    def close(self) -> None:
        with self.lock:  # type: ignore[union-attr]
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
        super().close()

    def _write(self, line: bytes) -> None:
        """Raises OSError; a part of the line may be in the file then, and the next one begins on a line of its own."""
        left = memoryview(b"\n" + line if self._is_torn else line)
        while left:
            size = os.write(self._descriptor, left)
            left = left[size:]
            self._is_torn = bool(left)

    def _reopen(self) -> None:
        self._is_asked = False
        try:
            opened = _open(self._path)
        except OSError as error:  # the events go on into the file that is open
            self._on_failure(f"the log file cannot be opened again: {error}; the log goes on in the file from before")
            return
        os.close(self._descriptor)
        self._descriptor = opened
        self._is_torn = False


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
