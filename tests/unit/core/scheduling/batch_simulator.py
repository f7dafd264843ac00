"""A batcher with a target in simulated time: a minute of traffic takes a second, whatever the machine does."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.unit.core.scheduling.scheduler_bench import model_spec
from trident.core.config.spec import BatchingSpec
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.scheduling.batch_forming import BatchLimits, Wait, Work, limits_of, may_end, take_work
from trident.core.scheduling.latency_target import BatchSetting, BatchTuner
from trident.core.scheduling.queue import RequestQueue

_MS = 1_000_000


_S = 1_000_000_000


def steady(rate: float, seconds: float, seed: int = 1) -> list[int]:
    """`rate` requests per second on average, independent of each other (Poisson)."""
    return _arrivals(lambda at: rate, rate, seconds, seed)


def bursts(rate: float, seconds: float, seed: int = 1, factor: float = 4.0) -> list[int]:
    """As `steady`, but `factor` times as many requests during a fifth of each second."""
    base = rate / (0.8 + 0.2 * factor)
    return _arrivals(lambda at: base * (factor if at % 1 < 0.2 else 1), base * factor, seconds, seed)


def diurnal(rate: float, seconds: float, seed: int = 1) -> list[int]:
    """The rate swings like that of a day, from a fifth of `rate` to 1.8 times as many, twice in `seconds`."""

    def at(second: float) -> float:
        return rate * (1 - 0.8 * math.cos(4 * math.pi * second / seconds))

    return _arrivals(at, 1.8 * rate, seconds, seed)


TRACES: dict[str, Callable[[float, float], list[int]]] = {"steady": steady, "bursts": bursts, "diurnal": diurnal}


def _arrivals(rate: Callable[[float], float], highest: float, seconds: float, seed: int) -> list[int]:
    """Arrivals whose rate changes with the time in seconds and is never above `highest`."""
    source = random.Random(seed)
    found: list[int] = []
    at = 0.0
    while (at := at + source.expovariate(highest)) < seconds:
        if source.random() * highest < rate(at):
            found.append(int(at * _S))
    return found


@dataclass(frozen=True, slots=True)
class Machine:
    """Instances whose executions take `fixed_ms`, and `item_ms` for each item, give or take `noise` of it."""

    fixed_ms: float
    item_ms: float
    instances: int = 1
    noise: float = 0.1


@dataclass(frozen=True, slots=True)
class Outcome:
    """For each request when it arrived and when its execution ended; and how long the instances were busy, in ns."""

    served: list[tuple[int, int]]
    busy_ns: int
    settings: list[BatchSetting]

    def windows(self, window_ns: int) -> list[list[int]]:
        """The latencies by the window in which the request arrived; without windows in which none did."""
        found: dict[int, list[int]] = {}
        for arrived_ns, end_ns in self.served:
            found.setdefault(arrived_ns // window_ns, []).append(end_ns - arrived_ns)
        return [found[index] for index in sorted(found)]

    def good(self, target_ms: float) -> int:
        """The requests that were answered within the target."""
        return sum(end_ns - arrived_ns <= target_ms * _MS for arrived_ns, end_ns in self.served)


def simulate(
    arrivals: Sequence[int],
    machine: Machine,
    *,
    max_batch_size: int,
    target_ms: float = 0,
    setting: BatchSetting | None = None,
    seed: int = 1,
) -> Outcome:
    """Serve `arrivals` with a target, or with a fixed setting."""
    batching = BatchingSpec(preferred_batch_sizes=(), target_p99_ns=int(target_ms * _MS))
    spec = model_spec(max_batch_size, batching)
    limits = limits_of(spec) if setting is None else setting.limits()
    simulation = _Simulation(arrivals, machine, limits, random.Random(seed))
    if setting is None:
        simulation.tuner = BatchTuner(spec, limits, simulation.change_limits, ModelStatistics())
        simulation.tuner.instances = machine.instances
    return simulation.run()


class _Simulation:
    def __init__(
        self,
        arrivals: Sequence[int],
        machine: Machine,
        limits: BatchLimits,
        source: random.Random,
    ) -> None:
        self._arrivals = arrivals
        self._machine = machine
        self._limits = limits
        self.tuner: BatchTuner | None = None
        self._source = source
        self._queue = RequestQueue()
        # When each execution that runs will end, when it began, and its requests; the number breaks ties.
        self._running: list[tuple[int, int, int, list[PendingRequest]]] = []
        self._wait: Wait | None = None
        self._outcome = Outcome([], 0, [])
        self._busy_ns = 0

    def change_limits(self, limits: BatchLimits) -> None:
        self._limits = limits

    def run(self) -> Outcome:
        arrivals, running = self._arrivals, self._running
        at = 0
        while at < len(arrivals) or running or self._queue.size:
            moments = [arrivals[at]] if at < len(arrivals) else []
            moments += [running[0][0]] if running else []
            moments += [self._wait.until_ns] if self._wait is not None else []
            now_ns = min(moments)
            if running and running[0][0] <= now_ns:
                self._end(heapq.heappop(running))
                self._wait = None
            elif at < len(arrivals) and arrivals[at] <= now_ns:
                at += 1
                pending = _request(now_ns)
                self._queue.push(pending)
                if self._wait is not None and may_end(self._wait, pending, self._queue.items):
                    self._wait = None
            else:
                self._wait = None
            if self._wait is None:
                self._begin(now_ns)
        return Outcome(self._outcome.served, self._busy_ns, self._outcome.settings)

    def _begin(self, now_ns: int) -> None:
        """Take all batches that are due, while an instance is free."""
        while len(self._running) < self._machine.instances:
            work = take_work(self._queue, self._limits, now_ns)
            if isinstance(work, Work):
                machine = self._machine
                duration_ms = machine.fixed_ms + machine.item_ms * len(work.batch)
                duration_ns = int(duration_ms * _MS * (1 + machine.noise * (2 * self._source.random() - 1)))
                self._busy_ns += duration_ns
                heapq.heappush(self._running, (now_ns + duration_ns, now_ns, id(work), work.batch))
                continue
            self._wait = work if isinstance(work, Wait) else None
            return

    def _end(self, execution: tuple[int, int, int, list[PendingRequest]]) -> None:
        end_ns, begin_ns, _, batch = execution
        self._outcome.served.extend((pending.enqueue_ns, end_ns) for pending in batch)
        if self.tuner is not None:
            before = self._limits
            self.tuner.note(batch, begin_ns, end_ns)
            if self._limits is not before:
                limits = self._limits
                self._outcome.settings.append(BatchSetting(limits.delay_ns, limits.max_batch_size))


def _request(now_ns: int) -> PendingRequest:
    pending = PendingRequest(InferenceRequest("m", []), _nobody)
    pending.enqueue_ns = now_ns
    return pending


def _nobody(response: InferenceResponse) -> None:
    """No client waits."""
