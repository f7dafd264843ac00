"""Triton's trace files: one with all traces, or numbered ones.

A failure loses the traces that were to be written, is logged once until something can be written again, and counted;
requests are not affected. Source: docs/spec/trace-and-log.md section 3.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import BinaryIO

from core.observability.tracing.setting import Setting
from core.observability.tracing.settings import UNLIMITED
from core.observability.tracing.trace import Trace
from core.observability.tracing.trace_counts import Loss, TraceCounts
from core.observability.tracing.triton_format import trace_text

_log = logging.getLogger("trident.trace")

# Characters of traces that wait for a numbered file; with more of them the file is written before it has its number.
_MOST_KEPT = 16 << 20


class TraceFiles:
    """Implements Destination. A file is made when its first trace is written.

    `PATH` gets the traces of settings without a number of traces a file, at once, and is a JSON document when the
    server has ended. `PATH.0`, `PATH.1` and so on are complete when they appear.
    """

    def __init__(self, path: str, counts: TraceCounts) -> None:
        self._path = path
        self._counts = counts
        self._file: BinaryIO | None = None
        # How much of the file is whole traces: what a failed write left behind it is cut off.
        self._size = 0
        self._next = 0
        self._is_failing = False

    def write(self, traces: Sequence[Trace]) -> None:
        written: list[str] = []
        for trace in traces:
            setting = trace.setting
            text = trace_text(trace, setting.levels)
            setting.collected += 1
            if not setting.settings.frequency and setting.settings.count == UNLIMITED:
                if text:
                    written.append(text)
                continue
            if text:
                setting.kept.append(text)
                setting.kept_size += len(text)
            if _is_full(setting):
                self._write_numbered(setting)
        if written:
            self._append(written)

    def finish(self, setting: Setting) -> None:
        if not setting.kept:
            return
        if setting.settings.frequency:
            self._write_numbered(setting)
        else:
            kept, setting.kept = setting.kept, []
            self._append(kept)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            self._try(lambda: _end(file, self._size), 0)

    def _append(self, texts: list[str]) -> None:
        self._try(lambda: self._append_whole(texts), len(texts))

    def _append_whole(self, texts: list[str]) -> None:
        if self._file is None:
            self._file = open(self._path, "wb", buffering=0, opener=_opener)  # noqa: SIM115
        content = (("," if self._size else "[") + ",".join(texts)).encode()
        file = self._file
        file.seek(self._size)
        file.truncate()
        _write_all(file, content)
        self._size += len(content)

    def _write_numbered(self, setting: Setting) -> None:
        kept, setting.kept, setting.kept_size = setting.kept, [], 0
        path = f"{self._path}.{self._next}"
        if self._try(lambda: _write_file(path, f"[{','.join(kept)}]".encode()), len(kept)):
            self._next += 1

    def _try(self, write: Callable[[], None], count: int) -> bool:
        """Whether `write`, which writes `count` traces, did not fail."""
        try:
            write()
        except OSError as error:
            self._counts.add_lost(Loss.NOT_WRITTEN, count)
            if not self._is_failing:
                self._is_failing = True
                _log.error("traces cannot be written to %s: %s; they are lost until they can", self._path, error)
            return False
        if self._is_failing:
            self._is_failing = False
            _log.info("traces are written to %s again", self._path)
        self._counts.add_written(count)
        return True


def _is_full(setting: Setting) -> bool:
    """Whether a numbered file has all its traces."""
    frequency, sampler = setting.settings.frequency, setting.sampler
    return (
        (frequency and len(setting.kept) >= frequency)
        or (not sampler.left and setting.collected >= sampler.sampled)
        or setting.kept_size >= _MOST_KEPT
    )


def _write_file(path: str, content: bytes) -> None:
    """Raises OSError; then there is no such file."""
    try:
        with open(path, "wb", buffering=0, opener=_opener) as file:
            _write_all(file, content)
    except OSError:
        if os.path.exists(path):
            os.unlink(path)
        raise


def _opener(path: str, flags: int) -> int:
    # A named pipe that nobody has opened for reading is an error, not something to wait for.
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


def _write_all(file: BinaryIO, content: bytes) -> None:
    # A disk that is nearly full takes a part.
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


def _end(file: BinaryIO, size: int) -> None:
    with file:
        file.seek(size)
        file.truncate()
        _write_all(file, b"]" if size else b"[]")
