"""No batch waits that is due: random schedules of one batcher in one thread, on a clock that only the test moves."""

from __future__ import annotations

import random
from functools import partial

import pytest

from tests.unit.core.scheduling.scheduler_bench import EchoInstance, model_spec
from tests.unit.pending_requests import pending_request
from trident.core.config.spec import BatchingSpec, QueuePolicy
from trident.core.errors import QueueFull
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.response import InferenceResponse
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.scheduling.batch_forming import Run, Wait, Work, form_batch
from trident.core.scheduling.dynamic_batcher import DynamicBatcher
from trident.core.scheduling.instance import HOLDING, WOKEN, ModelInstance

SEEDS = 1000
STEPS = 60
LEVELS = 2**32 + 1


class Schedule:
    """The steps of a seed. What the threads of the instances would do, the test does when they would be woken."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ns = 1000
        self.answers: dict[str, int] = {}
        self.waiting: list[PendingRequest] = []
        self.running: dict[ModelInstance, Work] = {}
        choose = self.random.choice
        batching = BatchingSpec(
            preferred_batch_sizes=tuple(self.random.sample(range(2, 9), choose((0, 1, 2)))),
            max_queue_delay_ns=choose((0, 100, 1000)),
            priority_levels=LEVELS,
            default_priority_level=choose((1, LEVELS)),
            default_policy=self._policy(),
            level_policies={1: self._policy()},
        )
        backends = [EchoInstance() for _ in range(choose((1, 2)))]
        self.batcher = DynamicBatcher(model_spec(8, batching), backends, ModelStatistics(), clock=lambda: self.now_ns)
        for instance in self.batcher._instances:
            self._look(instance)

    def _policy(self) -> QueuePolicy:
        choose = self.random.choice
        return QueuePolicy(
            default_timeout_ns=choose((0, 50, 200)),
            delay_on_timeout=choose((False, True)),
            max_queue_size=choose((0, 5)),
        )

    def submit(self, number: int) -> None:
        choose = self.random.choice
        id = str(number)
        pending = pending_request(id, priority=choose((0, 1, 2, LEVELS)), on_response=partial(self._note, id))
        pending.request.arrived_ns = choose((0, self.now_ns - 20))
        pending.batch_size = choose((1, 1, 1, 2, 3))
        pending.batch_key = choose((None, None, None, ("key",)))
        try:
            self.batcher.submit(pending)
        except QueueFull:
            return
        self.waiting.append(pending)

    def _note(self, id: str, response: InferenceResponse) -> None:
        self.answers[id] = self.answers.get(id, 0) + 1

    def cancel(self) -> None:
        if self.waiting:
            self.random.choice(self.waiting).cancel()

    def advance(self) -> None:
        self.now_ns += self.random.choice((1, 10, 60, 150, 1100))

    def expire(self) -> None:
        self.batcher._looks_ns = 0
        self.batcher._expire()

    def end_execution(self) -> None:
        if self.running:
            instance = self.random.choice(list(self.running))
            instance.perform(self.running.pop(instance))
            self._look(instance)

    def settle(self) -> None:
        """Have each thread look for work that was woken, or whose time is over."""
        while woken := [instance for instance in self.batcher._instances if self._is_up(instance)]:
            for instance in woken:
                self._look(instance)

    def _is_up(self, instance: ModelInstance) -> bool:
        if instance in self.running:
            return False
        return instance.state is WOKEN or (instance.state is HOLDING and instance.wait.until_ns <= self.now_ns)

    def _look(self, instance: ModelInstance) -> None:
        with self.batcher._lock:
            work = self.batcher._next_work(instance)
        if work is not None and work.batch:
            self.running[instance] = work
        elif work is not None:
            instance.perform(work)
            self._look(instance)

    def check(self) -> None:
        """While an instance is free, the batch at the head of the queue is not due, and its wait is not too long."""
        batcher = self.batcher
        if len(self.running) == len(batcher._instances):
            return
        live: list[PendingRequest] = []
        for level in batcher._queue._levels:
            late = [each for each in level.waiting if 0 < each.expires_ns <= self.now_ns]
            live += [each for each in level.waiting if each not in late]
            live += [*level.delayed, *(late if level.policy.delay_on_timeout else ())]
        live = [each for each in live if not each.cancelled]
        decision = form_batch(live[: batcher._limits.max_batch_size + 1], batcher._limits, self.now_ns)
        assert not isinstance(decision, Run)
        if isinstance(decision, Wait):
            holder = batcher._pool.holder
            assert holder is not None
            assert holder.wait.until_ns <= decision.until_ns


@pytest.mark.parametrize("start", range(0, SEEDS, 250))
def test_no_batch_waits_that_is_due(start: int) -> None:
    for seed in range(start, start + 250):
        schedule = Schedule(seed)
        steps = [schedule.cancel, schedule.advance, schedule.advance, schedule.expire, schedule.end_execution]
        for number in range(STEPS):
            if schedule.random.random() < 0.5:
                schedule.submit(number)
            else:
                schedule.random.choice(steps)()
            schedule.settle()
            schedule.check()
        schedule.batcher.close(0)
        while schedule.running:
            schedule.end_execution()
            schedule.settle()
        assert schedule.answers == dict.fromkeys([pending.request.id for pending in schedule.waiting], 1), seed
