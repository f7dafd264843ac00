"""The states of an instance, on processes that do what the test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.unit.core.backends.python.test_batches import spec
from tests.waiting import until
from trident.core.backends.backend import Execution
from trident.core.backends.python.backend import PythonInstance
from trident.core.backends.python.channel import StubGone
from trident.core.config.placement import DeviceKind, Placement
from trident.core.errors import BackendFailed, ServerError
from trident.core.inference.request import InferenceRequest

REQUEST = InferenceRequest("m", [])


class FakeProcess:
    """A process whose model is initialized when `may_start` is set, unless `failure` is."""

    resident_bytes = 1000

    def __init__(self, on_gone: Callable[[], None]) -> None:
        self.die = on_gone
        self.may_start = threading.Event()
        self.may_start.set()
        self.failure: Exception | None = None
        self.dies_in_execute = False
        self.stopped_within: float | None = None
        self.has_ended = False

    def initialize(self) -> None:
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

    def _launch(self, on_gone: Callable[[], None]) -> FakeProcess:
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
def test_a_process_that_the_system_refuses_is_tried_again(bench: Bench) -> None:
    refusals = [OSError(12, "Cannot allocate memory")] * 3  # after the third there is a pause

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


def test_a_closed_instance_is_not_started_again(bench: Bench) -> None:
    bench.instance.close()
    bench.processes[0].die()
    bench.instance.close()
    assert len(bench.processes) == 1


def test_an_unload_during_a_restart_ends_the_new_process(bench: Bench) -> None:
    bench.prepare = lambda process: process.may_start.clear()
    bench.processes[0].die()
    until(lambda: len(bench.processes) == 2)
    bench.instance.close()
    assert bench.processes[1].stopped_within == 0
    bench.processes[1].may_start.set()
    until(lambda: bench.processes[1].has_ended)
    assert bench.instance.is_closed
