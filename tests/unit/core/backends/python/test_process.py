"""The watched files of processes, the question whether a model is ready, and the states of an instance."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.unit.core.backends.python.test_batches import spec
from tests.waiting import until
from trident.core.backends.backend import Execution
from trident.core.backends.python.backend import PythonInstance
from trident.core.backends.python.channel import FileWatcher, StubGone, WatchedFile
from trident.core.backends.python.process import PROGRAM, ReadinessCheck
from trident.core.backends.python.stub.trident_stub.wire import QUESTION, to_json
from trident.core.config.placement import DeviceKind, Placement
from trident.core.errors import BackendFailed, ModelNotReady, ServerError
from trident.core.inference.request import InferenceRequest
from trident.core.interprocess.shared_memory import SharedMemory

THREAD = "trident-python-models"


def is_running() -> bool:
    return any(thread.name == THREAD for thread in threading.enumerate())


class End:
    """A watched end of a socket, and how often it was readable and writable."""

    def __init__(self, watcher: FileWatcher) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.readable = threading.Semaphore(0)
        self.writable = threading.Semaphore(0)
        self.errors: list[Exception] = []
        self.watched: WatchedFile = watcher.watch(
            self.ours.fileno(), self.readable.release, self.errors.append, self._write
        )

    def _write(self) -> None:
        self.writable.release()
        self.watched.want_to_write(False)

    def close(self) -> None:
        self.watched.end()
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def watcher() -> FileWatcher:
    return FileWatcher()


@pytest.fixture
def end(watcher: FileWatcher) -> Iterator[End]:
    made = End(watcher)
    yield made
    made.close()


def test_disarmed_file_gets_no_callback(end: End) -> None:
    end.watched.arm()
    end.watched.disarm()
    end.theirs.send(b"x")
    assert not end.readable.acquire(timeout=0.05)


def test_writable_file_gets_its_callback(end: End) -> None:
    end.watched.want_to_write(True)
    assert end.writable.acquire(timeout=60)
    assert not end.writable.acquire(timeout=0.05)


def test_exception_of_a_callback_is_reported_and_others_continue(
    watcher: FileWatcher, end: End, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("cannot be read")

    def fail_again(error: Exception) -> None:
        raise RuntimeError(f"{error}, nor ended")

    reading, writing = os.pipe()
    watched = watcher.watch(reading, fail, fail_again)
    os.write(writing, b"x")
    watched.arm()
    until(lambda: "cannot be read, nor ended" in caplog.text)
    end.theirs.send(b"x")
    end.watched.arm()
    assert end.readable.acquire(timeout=60)
    watched.end()
    os.close(reading)
    os.close(writing)


def test_thread_ends_with_the_last_file_and_starts_again_with_the_next(watcher: FileWatcher) -> None:
    for _ in range(2):
        first, second = End(watcher), End(watcher)
        assert is_running()
        first.close()
        second.theirs.send(b"x")
        second.watched.arm()
        assert second.readable.acquire(timeout=60)
        second.close()
        until(lambda: not is_running())


class Stub:
    """The other end: it answers when the test says so."""

    def __init__(self, limit_s: float = 30) -> None:
        self.ours, theirs = socket.socketpair()
        self._theirs = theirs
        self.question = ReadinessCheck(theirs, "m_0", limit_s)
        self.asked = 0

    def answer(self, is_ready: bool, reason: str = "") -> None:
        self.asked += self.questions
        self.ours.sendall(to_json([self.asked, is_ready, reason]) + b"\n")

    @property
    def questions(self) -> int:
        """How many have come since the last look."""
        self.ours.setblocking(False)
        try:
            return len(self.ours.recv(100)) // QUESTION.size
        except BlockingIOError:
            return 0
        finally:
            self.ours.setblocking(True)

    def close(self) -> None:
        self.ours.close()
        self._theirs.close()


@pytest.fixture
def stub() -> Iterator[Stub]:
    made = Stub()
    yield made
    made.close()


def test_stub_exits_if_its_server_died_during_the_start() -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    pairs[2][0].close()
    memory = SharedMemory.create(1 << 16)
    given = [pairs[0][1].fileno(), memory.descriptor, pairs[1][1].fileno(), pairs[2][1].fileno()]
    stub = [sys.executable, str(PROGRAM), *map(str, given), "m_0_0"]
    try:
        assert subprocess.run(stub, pass_fds=given, start_new_session=True, timeout=60, check=False).returncode == 1
    finally:
        memory.close()
        for each in sum(pairs, ()):
            each.close()


def test_health_check_is_not_repeated_before_its_answer() -> None:
    stub = Stub(limit_s=0.05)
    for _ in range(3):
        with pytest.raises(ModelNotReady, match=r"Timed out waiting for user-defined is_ready\(\) response"):
            stub.question.ask()
    assert stub.questions == 1
    stub.close()


def test_late_health_answer_does_not_count_for_the_next_check() -> None:
    stub = Stub(limit_s=0.05)
    with pytest.raises(ModelNotReady, match="Timed out"):
        stub.question.ask()
    stub.answer(True)
    with pytest.raises(ModelNotReady, match="Timed out"):
        stub.question.ask()
    assert stub.questions == 1
    stub.close()


def test_concurrent_health_checks_share_an_answer(stub: Stub) -> None:
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(stub.question.ask) for _ in range(8)]
        stub.asked = QUESTION.unpack(stub.ours.recv(QUESTION.size))[0]
        shared = stub.question._shared
        until(lambda: len(shared._condition._waiters) == 7)  # type: ignore[union-attr]
        stub.answer(True)
        for each in asked:
            each.result(60)
    assert stub.questions == 0


@pytest.mark.parametrize("answer", [b'[2, true, ""]\n', b'[1, true, ""]\n[1, true, ""]\n', b"[1]\n", b"{\n", b"\xff\n"])
def test_invalid_answer_means_unhealthy(stub: Stub, answer: bytes) -> None:
    stub.ours.sendall(answer)
    stub.question._is_open, stub.question._number = True, 1
    with pytest.raises(ModelNotReady, match="Stub process 'm_0' is not healthy"):
        stub.question.ask()


# --- instances, on processes that the test controls


REQUEST = InferenceRequest("m", [])


class FakeProcess:
    """A process whose model is initialized when `may_start` is set, unless `failure` is."""

    resident_bytes = 1000

    def __init__(self, on_gone: Callable[[StubGone], None]) -> None:
        self.die = lambda: on_gone(StubGone("the stub process ended"))
        self.may_start = threading.Event()
        self.may_start.set()
        self.failure: Exception | None = None
        self.dies_in_execute = False
        self.stopped_within: float | None = None
        self.has_ended = False
        self.gone: StubGone | None = None

    def start(self) -> None:
        assert self.may_start.wait(60)
        if self.failure is not None:
            raise self.failure

    def execute(
        self, requests: Sequence[Any], batch_sizes: Sequence[int], senders: Sequence[Any], limit_s: float | None
    ) -> Execution:
        if self.dies_in_execute:
            raise StubGone("it closed its socket")
        return Execution([[] for _ in requests], 1, 2)

    def check_ready(self) -> None: ...

    def stop(self, within_s: float) -> None:
        self.stopped_within = within_s

    def end(
        self, failure: Callable[[str], ServerError] | None = None, reason: str = "", *, is_ending: bool = False
    ) -> str:
        self.has_ended = True
        return "was ended by SIGKILL"


class Bench:
    """An instance and the processes that it has started. `prepare` is applied to each new one."""

    def __init__(self) -> None:
        self.processes: list[FakeProcess] = []
        self.prepare: Callable[[FakeProcess], None] = lambda process: None
        self.instance = PythonInstance(Placement("m_0", DeviceKind.CPU), spec(), self._launch, None, 7.0)  # type: ignore[arg-type]

    def _launch(self, on_gone: Callable[[StubGone], None]) -> FakeProcess:
        process = FakeProcess(on_gone)
        self.prepare(process)
        self.processes.append(process)
        return process

    def execute(self, count: int = 1) -> Execution:
        return self.instance.execute([REQUEST] * count, [1] * count)


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.instance.begin()
    return made


def test_executions_wait_for_a_process_that_is_being_started(bench: Bench) -> None:
    bench.prepare = lambda process: process.may_start.clear()
    bench.processes[0].die()
    until(lambda: len(bench.processes) == 2)
    answers: list[Execution] = []
    waiting = threading.Thread(target=lambda: answers.append(bench.execute()))
    waiting.start()
    assert bench.instance.trouble
    assert answers == []
    bench.processes[1].may_start.set()
    waiting.join(10)
    assert [answer.outputs for answer in answers] == [[[]]]
    bench.instance.close()


@pytest.mark.slow
@pytest.mark.parametrize("refusal", [OSError(12, "Cannot allocate memory"), RuntimeError("Cannot allocate memory")])
def test_failed_process_start_is_retried(bench: Bench, refusal: Exception) -> None:
    refusals = [refusal] * 3  # after the third there is a pause

    def prepare(process: FakeProcess) -> None:
        if refusals:
            raise refusals.pop()

    bench.prepare = prepare
    bench.processes[0].die()
    until(lambda: "Cannot allocate memory" in bench.instance.trouble)
    with pytest.raises(BackendFailed):
        bench.execute()
    until(lambda: bench.instance.restarts == 1)
    assert bench.execute().outputs == [[]]


def test_closed_instance_is_not_started_again(bench: Bench) -> None:
    bench.instance.close()
    bench.processes[0].die()
    bench.instance.close()
    assert len(bench.processes) == 1


@pytest.mark.parametrize("has_process", [True, False])
def test_starting_instance_can_be_closed(has_process: bool) -> None:
    bench = Bench()
    bench.prepare = lambda process: process.may_start.clear()
    if not has_process:
        bench.instance.abort("newer files", for_good=True)
    failures: list[str] = []

    def begin() -> None:
        with pytest.raises(BackendFailed) as caught:
            bench.instance.begin()
        failures.append(caught.value.message)

    start = threading.Thread(target=begin)
    start.start()
    if has_process:
        until(lambda: bench.processes)
        bench.instance.abort("newer files", for_good=True)
        bench.processes[0].may_start.set()
    start.join(60)
    assert failures == ["the model is unloaded"]
    assert bench.processes[0].has_ended
    assert bench.instance.is_closed


def test_unload_during_a_restart_ends_the_new_process(bench: Bench) -> None:
    bench.prepare = lambda process: process.may_start.clear()
    bench.processes[0].die()
    until(lambda: len(bench.processes) == 2)
    bench.instance.close()
    assert bench.processes[1].stopped_within == 0
    bench.processes[1].may_start.set()
    until(lambda: bench.processes[1].has_ended)
    assert bench.instance.is_closed
