"""Where traces go besides OpenTelemetry: Triton's trace files, one with all traces or numbered ones, written by a
thread; and the memory that keeps the last ones for the console.

A failure loses the traces that were to be written, is logged once until something can be written again, and counted;
requests are not affected. Source: docs/spec/trace-and-log.md section 3.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Protocol

import numpy as np

from trident.core.inference.tensors import BY_NAME, BYTES
from trident.core.observability.tracing.settings import TENSORS, TIMESTAMPS, UNLIMITED, Setting
from trident.core.observability.tracing.trace import Loss, Trace, TraceCounts, TracedTensor, TraceEvent, TraceRecord


class Destination(Protocol):
    def write(self, traces: Sequence[Trace]) -> None:
        """Take the roots of traces that are complete. Raises nothing."""
        ...

    def finish(self, setting: Setting) -> None:
        """All traces of a setting that was replaced have been given."""
        ...

    def close(self) -> None:
        """Write what was kept; the last call."""
        ...


# Traces that wait to be written. A slow disk must not fill the memory.
_MOST_WAITING = 10_000
# Traces are collected for this long before they are written: each turn of the thread takes the interpreter's lock.
_GATHER_SECONDS = 0.1
_TICK_SECONDS = 1.0
_CLOSE_SECONDS = 10.0


class TraceThread:
    """Any thread may call `put`; the thread starts at the first. `tick` is called about every second from then on."""

    def __init__(self, destination: Destination, counts: TraceCounts, tick: Callable[[], None]) -> None:
        self._destination = destination
        self._counts = counts
        self._tick = tick
        self._waiting: deque[Trace | Setting] = deque()
        self._wake = threading.Event()
        # Set when what waits is to be written without gathering more.
        self._is_urgent = threading.Event()
        self._is_closing = False
        self._starting = threading.Lock()
        self._own_thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with self._starting:
            if self._own_thread is None and not self._is_closing:
                self._own_thread = threading.Thread(target=self._run, name="trident-trace", daemon=True)
                self._own_thread.start()

    def put(self, item: Trace | Setting) -> None:
        """Have a complete trace written, or what was kept of a setting that was replaced. Does not block."""
        if len(self._waiting) >= _MOST_WAITING and isinstance(item, Trace):
            self._counts.add_lost(Loss.QUEUE_FULL)
            item.setting.collected += 1
            return
        self._waiting.append(item)
        self._wake.set()

    def hasten(self) -> None:
        """Have what was put written at once. Does not block."""
        self._is_urgent.set()
        self._wake.set()

    def close(self) -> None:
        """Write everything and end. Blocks, at most ten seconds."""
        self._is_closing = True
        self.hasten()
        if self._own_thread is not None:
            self._own_thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.wait(_TICK_SECONDS)
            self._is_urgent.wait(_GATHER_SECONDS)
            self._wake.clear()
            self._is_urgent.clear()
            self._write()
            self._tick()
        self._write()
        self._guard(self._destination.close)

    def _write(self) -> None:
        traces: list[Trace] = []
        while self._waiting:
            item = self._waiting.popleft()
            if isinstance(item, Trace):
                traces.append(item)
                continue
            # The traces of a setting come before its end.
            self._guard(lambda given=traces: self._destination.write(given))  # type: ignore[misc]
            self._guard(lambda ended=item: self._destination.finish(ended))  # type: ignore[misc]
            traces = []
        if traces:
            self._guard(lambda: self._destination.write(traces))

    def _guard(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception:  # the thread must live on: the server does, too
            _log.exception("traces could not be written")


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


# Source: docs/spec/trace-and-log.md section 3.


# Written as nothing, as in Triton.
_UNSHOWN = frozenset({"FP16", "BF16"})
_CHARACTERS = frozenset({"INT8", "UINT8"})


def trace_text(root: Trace, levels: tuple[str, ...]) -> str:
    """The objects of a request and of those that it led to, separated by commas; empty if there is nothing to show."""
    return ",".join(
        [each for trace in root.family() for each in _objects(trace, TIMESTAMPS in levels, TENSORS in levels)]
    )


def _objects(trace: Trace, has_times: bool, has_tensors: bool) -> Iterator[str]:
    number = trace.number
    if has_times:
        for event in trace.ahead:
            yield _timestamp(number, event)
        yield _header(trace)
        for event in trace.events:
            yield _timestamp(number, event)
    if has_tensors:
        for tensor in trace.tensors:
            yield _tensor(number, tensor)
    if has_times:
        for event in trace.behind:
            yield _timestamp(number, event)


def _header(trace: Trace) -> str:
    header: dict[str, Any] = {
        "id": trace.number,
        "model_name": trace.model_name,
        "model_version": trace.model_version,
    }
    if trace.request_id:
        header["request_id"] = trace.request_id
    if trace.parent is not None:
        header["parent_id"] = trace.parent.number
    return _compact(header)


def _timestamp(number: int, event: TraceEvent) -> str:
    # The names are the server's own. JSON's encoder takes ten times as long.
    name, ns = event
    return f'{{"id":{number},"timestamps":[{{"name":"{name}","ns":{ns}}}]}}'


def _tensor(number: int, tensor: TracedTensor) -> str:
    shown = {
        "name": tensor.name,
        "data": _elements(tensor),
        "shape": ",".join(map(str, tensor.shape)),
        "dtype": tensor.datatype,
    }
    return _compact({"id": number, "activity": tensor.activity, "tensor": shown})


def _elements(tensor: TracedTensor) -> str:
    """The elements as Triton shows them. Those that are incomplete at the end of a shortened content are left out."""
    name, content = tensor.datatype, tensor.content
    datatype = BY_NAME[name]
    if datatype is BYTES:
        return ",".join([_quoted(each) for each in _strings(content)])
    if name in _UNSHOWN:
        return ""
    if name in _CHARACTERS:
        return ",".join([chr(byte) for byte in content])
    size = datatype.dtype.itemsize
    values = np.frombuffer(content[: len(content) // size * size], datatype.dtype)
    if name == "BOOL":
        return ",".join(["1" if value else "0" for value in values])
    return ",".join([f"{value:g}" if values.dtype.kind == "f" else str(value) for value in values.tolist()])


def _strings(content: bytes) -> list[bytes]:
    found, at = [], 0
    while at + 4 <= len(content):
        size = int.from_bytes(content[at : at + 4], "little")
        if at + 4 + size > len(content):
            break
        found.append(content[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def _quoted(text: bytes) -> str:
    return f'"{text.decode("utf-8", "replace")}"'


def _compact(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))


class RecentTraces:
    """Implements Destination: keeps the last traces without their tensors, and passes all on to `destination`."""

    def __init__(self, most: int, destination: Destination | None) -> None:
        self._destination = destination
        self._kept: deque[tuple[TraceRecord, ...]] = deque(maxlen=most)

    def write(self, traces: Sequence[Trace]) -> None:
        if self._kept.maxlen:
            self._kept.extend(tuple(map(_record, root.family())) for root in traces)
        if self._destination is not None:
            self._destination.write(traces)

    def finish(self, setting: Setting) -> None:
        if self._destination is not None:
            self._destination.finish(setting)

    def close(self) -> None:
        if self._destination is not None:
            self._destination.close()

    def last(self) -> list[tuple[TraceRecord, ...]]:
        """Each request with those that it led to; the last first. Any thread."""
        return list(self._kept)[::-1]


def _record(trace: Trace) -> TraceRecord:
    depth, above = 0, trace.parent
    while above is not None:
        depth, above = depth + 1, above.parent
    return TraceRecord(
        number=trace.number,
        parent=trace.parent.number if trace.parent is not None else 0,
        depth=depth,
        model=trace.model_name,
        version=trace.model_version,
        request_id=trace.request_id[:256],
        events=tuple(sorted((*trace.ahead, *trace.events, *trace.behind), key=_when)),
    )


def _when(event: TraceEvent) -> int:
    return event[1]
