"""The file of the log: appended to, and opened again when it was moved away or removed.

Several processes append to it. Each write of whole lines is one to the end of the file, so that no line is torn by
another.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from core.errors import ConfigInvalid


class LogFile:
    """The file at `path`. Raises ConfigInvalid if it cannot be opened. One thread, but for `ask_to_reopen`.

    `on_failure` is told why the file is not opened again, each time. `is_asked`: the next write opens it again.
    """

    def __init__(self, path: str, on_failure: Callable[[str], None]) -> None:
        self._path = path
        self._on_failure = on_failure
        self.is_asked = False
        self._is_torn = False
        try:
            self._descriptor = _open(path)
        except OSError as error:
            raise ConfigInvalid(f"cannot open the log file {path}: {error.strerror}") from error

    def ask_to_reopen(self) -> None:
        """Have the file at the path opened before the next write. In a signal handler, too."""
        self.is_asked = True

    def write(self, lines: bytes) -> None:
        """Raises OSError; a part of the lines may be in the file then, and the next write begins on a line of its own.

        Without lines only a file that was moved away is left.
        """
        # A file that was removed takes events with it: a link count of 0 says so in less than a microsecond.
        if self.is_asked or not os.fstat(self._descriptor).st_nlink:
            self._reopen()
        left = memoryview(b"\n" + lines if self._is_torn and lines else lines)
        while left:
            size = os.write(self._descriptor, left)
            left = left[size:]
            self._is_torn = bool(left)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _reopen(self) -> None:
        self.is_asked = False
        try:
            opened = _open(self._path)
        except OSError as error:  # the events go on into the file that is open
            self._on_failure(f"the log file cannot be opened again: {error}; the log goes on in the file from before")
            return
        os.close(self._descriptor)
        self._descriptor = opened
        self._is_torn = False


def _open(path: str) -> int:
    # A named pipe that nobody has opened for reading is an error, not something to wait for.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor
