from __future__ import annotations

from itertools import product

import pytest

from tests.unit.core.scheduling.scheduler_bench import Stub
from trident.core.config.spec import ModelSpec
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.scheduling.execution import ShortExecutions
from trident.core.scheduling.instance import ModelInstance
from trident.core.scheduling.instance_pool import IDLE, RUNNING, WOKEN, InstanceThread, ThreadState
from trident.core.scheduling.queue import deliver

SPEC = ModelSpec(name="m", version=1, platform="", backend="stub", max_batch_size=8, inputs={}, outputs={})


@pytest.fixture
def thread() -> InstanceThread:
    stub = Stub()
    instance = ModelInstance(stub, SPEC, ModelStatistics(), deliver, deliver, ShortExecutions(SPEC))
    return InstanceThread(stub, instance, lambda thread: None)


def test_a_thread_moves_along_the_allowed_states(thread: InstanceThread) -> None:
    assert thread.state is RUNNING
    for state in (IDLE, WOKEN, RUNNING):
        thread.move(state)
        assert thread.state is state


@pytest.mark.parametrize(
    ("start", "to"), [(start, to) for start, to in product(ThreadState, ThreadState) if to not in start.next]
)
def test_a_move_that_is_not_allowed_raises(thread: InstanceThread, start: ThreadState, to: ThreadState) -> None:
    thread.state = start
    with pytest.raises(RuntimeError, match="instance thread 'm_0_0' cannot go from"):
        thread.move(to)
    assert thread.state is start


def test_join_does_not_wait_for_a_thread_that_was_never_started(thread: InstanceThread) -> None:
    assert thread.join(None)
