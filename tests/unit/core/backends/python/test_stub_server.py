"""The library of models: its log, its metrics, the credit of senders, and its dependencies."""

from __future__ import annotations

import ast
import gc
import inspect
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from trident_stub import server as metrics
from trident_stub.channel import Channel, SenderCredit, ServerCalls, ServerGone
from trident_stub.server import Logger, MetricFamily
from trident_stub.wire import (
    ANSWER,
    CANCEL,
    CREDIT,
    EXECUTE,
    FIRST_CREDIT,
    FIRST_CREDIT_BYTES,
    LOG,
    RELEASE,
    REPLY,
    RESULT,
    TO_SERVER,
    WAITS,
    Records,
    SentLayouts,
    count_frame,
)

from tests.project import ROOT
from tests.unit.core.backends.python.conftest import MemoryServer
from trident.core.interprocess.frames import HEADER, FrameReader, frame
from trident.core.interprocess.shared_memory import SharedMemory


def test_log_lines_have_file_and_line(memory_server: MemoryServer) -> None:
    frame = inspect.currentframe()
    assert frame is not None
    line = frame.f_lineno
    Logger.log("a")
    Logger.log("b", Logger.VERBOSE)
    Logger.log(message="c", level=Logger.LogLevel.ERROR)
    Logger.log_info("d")
    Logger.log_warn("e")
    Logger.log_error("f")
    Logger.log_verbose("g")
    assert memory_server.lines == [
        (level, text, "test_stub_server.py", line + 1 + index)
        for index, (level, text) in enumerate(zip((0, 3, 2, 0, 1, 2, 3), "abcdefg", strict=True))
    ]


# --- metrics


@pytest.fixture(autouse=True)
def _family_and_metric(memory_server: MemoryServer) -> Any:
    memory_server.answers = {"metric_family": {"family": 3}, "metric_create": {"metric": 4}}
    yield
    gc.collect()
    metrics._gone.clear()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1]])
def test_invalid_value_of_a_metric_is_refused(value: Any) -> None:
    gauge = MetricFamily("f", "d", MetricFamily.GAUGE).Metric()
    with pytest.raises(TypeError, match="the value of a metric must be"):
        gauge.set(value)


# --- the channel


def test_collected_frames_are_sent_in_one_call() -> None:
    ours, theirs = socket.socketpair()
    memory = SharedMemory.create(1 << 16)
    channel = Channel(theirs, os.dup(memory.descriptor))
    ours.setblocking(False)
    with channel.together():
        channel.send(LOG, 0, b"[]")
        channel.send(LOG, 0, b"[]")
        with pytest.raises(BlockingIOError):
            ours.recv(1)
    assert len(ours.recv(1000)) == 64
    channel.send(LOG, 0, b"[]")
    assert len(ours.recv(1000)) == 32
    ours.close()
    theirs.close()
    memory.close()


class Ends:
    """The channel of a stub, and the server's end of it."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        self.memory = SharedMemory.create(1 << 16)
        self.channel = Channel(theirs, os.dup(self.memory.descriptor))
        self.batches: list[tuple[int, list[Any]]] = []
        self.calls = ServerCalls(self.channel, lambda number, requests: self.batches.append((number, requests)))
        self.channel.listen(self.calls.on_frame)
        self._numbers = SentLayouts()

    def batch(self, number: int, *records: int, width: int = 4) -> bytes:
        """A batch of requests with these numbers."""
        made = Records(self._numbers, self.memory)
        for each in records:
            key = ((("A", "FP32", (1, width)),), ())
            made.add(each, self._numbers.find(key) or self._numbers.add(key, *key), [bytes(16)])
        content = made.frame(EXECUTE, number)
        self._numbers.sent()
        return content

    def close(self) -> None:
        self.socket.close()
        self.channel._sock.close()
        self.memory.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_batches_arrive_in_order(ends: Ends) -> None:
    ends.socket.sendall(ends.batch(1, 1, 2) + frame(CANCEL, 2) + ends.batch(3, 3))
    ends.channel.wait(lambda: len(ends.batches) == 2)
    assert [(number, [each._number for each in requests]) for number, requests in ends.batches] == [
        (1, [1, 2]),
        (3, [3]),
    ]
    assert (ends.calls.is_cancelled(1), ends.calls.is_cancelled(2)) == (False, True)


WRONG: dict[str, Callable[[Ends], bytes]] = {
    "a batch whose number is not that of its first request": lambda ends: ends.batch(7, 8),
    "requests that do not follow each other": lambda ends: ends.batch(7, 7, 9),
    "a batch again": lambda ends: ends.batch(1, 1),
    "no requests": lambda ends: ends.batch(7),
    "inputs of another size": lambda ends: ends.batch(7, 7, width=5),
    "the cancellation of an unknown request": lambda ends: frame(CANCEL, 7),
    "credit for an unknown request": lambda ends: count_frame(CREDIT, 7, 1),
    "more credit than responses": lambda ends: count_frame(CREDIT, 1, 300),
    "credit without a count": lambda ends: frame(CREDIT, 1),
    "an answer to no call": lambda ends: frame(ANSWER, 1, (b"[]",)),
    "a reply to no request": lambda ends: frame(REPLY, 1, (bytes(16), bytes(32))),
    "a frame of the other direction": lambda ends: frame(RESULT, 1),
    "tensors in shared memory that are not there": lambda ends: frame(RELEASE, 1, ((1 << 30).to_bytes(8, "little"),)),
    "a frame that another protocol would have": lambda ends: HEADER.pack(0, CANCEL, 0, 1, 1),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_frame_ends_the_connection(ends: Ends, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    ends.socket.sendall(ends.batch(1, 1) + WRONG[name](ends) + ends.batch(20, 20))
    with pytest.raises(ServerGone):
        ends.channel.wait(lambda: len(ends.batches) == 3)
    assert len(ends.batches) <= 1
    assert "the connection to the server failed: " in capsys.readouterr().err
    with pytest.raises(ServerGone):
        ends.calls.log(0, "a line", "model.py", 1)
    assert ends.socket.recv(100) == b""


def test_frame_sent_during_a_send_is_queued_behind_it(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler, or the end of an object, may log while its thread sends."""
    sendall = ends.channel._sock.sendall

    class Interrupted:
        def sendall(self, content: bytes) -> None:
            sendall(content[:20])
            if content[16:19] == b"[1]":
                ends.channel.send(LOG, 0, b"[2]")
            sendall(content[20:])

    monkeypatch.setattr(ends.channel, "_sock", Interrupted())
    ends.channel.send(LOG, 0, b"[1]")
    monkeypatch.undo()
    frames = FrameReader(TO_SERVER, "the stub").feed(ends.socket.recv(1000))
    assert [bytes(content).rstrip() for *_, content in frames] == [b"[1]", b"[2]"]


def test_sender_waits_after_so_many_responses_or_bytes() -> None:
    request = SenderCredit()
    assert [request.send(10) for _ in range(FIRST_CREDIT)] == [0] * (FIRST_CREDIT - 1) + [WAITS]
    assert not request.may_send
    request.take(1)
    assert request.may_send
    assert request.send(10) == WAITS
    large = SenderCredit()
    assert [large.send(size) for size in (10, FIRST_CREDIT_BYTES)] == [0, WAITS]
    large.take(1)  # the small one
    assert not large.may_send
    large.is_cancelled = True
    assert large.may_send


# --- the modules, which need Python 3.9 and numpy


STUB = ROOT / "core" / "backends" / "python" / "stub"
SHARED = [ROOT / "core" / "interprocess" / name for name in ("frames.py", "shared_memory.py")]
FILES = [*sorted(STUB.rglob("*.py")), *SHARED]
# Modules that came to the standard library after 3.9, and names in older ones that did.
TOO_NEW = {"tomllib", "wsgiref.types", "typing.Self", "typing.TypeAlias", "typing.ParamSpec", "enum.StrEnum"}
TOO_NEW |= {"datetime.UTC", "itertools.pairwise", "itertools.batched", "asyncio.TaskGroup", "asyncio.timeout"}
NOT_IN_THE_STUB = {"TYPE_CHECKING", "TYPE_CHECKING or __package__ != 'trident_stub'"}
OWN = {"trident_stub", "c_python_backend_utils", "numpy"}


def imported(tree: ast.AST) -> set[str]:
    """Imports that the module executes, as dotted names; relative ones are the package's own."""
    elsewhere = {
        id(line)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in NOT_IN_THE_STUB
        for line in node.body
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in elsewhere:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_module_needs_python_3_9_and_numpy_only(path: Path) -> None:
    source = path.read_text()
    tree = ast.parse(source, feature_version=(3, 9))
    names = imported(tree)
    assert {name.split(".")[0] for name in names} - OWN <= set(sys.stdlib_module_names)
    assert not names & TOO_NEW
    # Annotations of a newer syntax must not be evaluated.
    annotated = any(isinstance(node, (ast.FunctionDef, ast.AnnAssign)) for node in ast.walk(tree))
    assert not annotated or "from __future__ import annotations" in source
