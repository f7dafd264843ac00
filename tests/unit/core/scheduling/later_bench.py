"""A dynamic batcher on an instance that answers through senders, for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from tests.unit.core.scheduling.scheduler_bench import LIMIT_S, instance_threads, model_spec
from trident.core.backends.backend import Execution
from trident.core.config.placement import DeviceKind, Placement
from trident.core.config.spec import BatchingSpec
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, Outputs, OutputTensor
from trident.core.inference.streaming import LATER, DeferredOutcome, ResponseSender, StreamedRequest
from trident.core.inference.window_limits import DEFAULT_WINDOW, WindowLimits
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.scheduling.dynamic_batcher import DynamicBatcher

Answer = Callable[[InferenceRequest, ResponseSender], Outputs | Exception | DeferredOutcome]


def text(value: str) -> list[OutputTensor]:
    """Outputs that say `value`."""
    return [OutputTensor("OUT", "BYTES", (1,), np.array([value.encode()], dtype=object))]


class LaterStub:
    """Answers each request as `answer` says, by default later. `senders` keeps those of requests answered later."""

    poisoned = False
    may_run_inline = False
    answers_later = True

    def __init__(self, number: int = 0, answer: Answer | None = None) -> None:
        self.placement = Placement(f"m_0_{number}", DeviceKind.CPU)
        self.answer = answer
        self.senders: dict[str, ResponseSender] = {}
        self._kept = threading.Condition()

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender] = (),
    ) -> Execution:
        now_ns = time.monotonic_ns()
        return Execution([self._outcome(*pair) for pair in zip(requests, senders, strict=True)], now_ns, now_ns)

    def _outcome(self, request: InferenceRequest, sender: ResponseSender) -> Outputs | Exception | DeferredOutcome:
        if self.answer is not None:
            return self.answer(request, sender)
        with self._kept:
            self.senders[request.id] = sender
            self._kept.notify_all()
        return LATER

    def sender(self, id: str) -> ResponseSender:
        """Wait until request `id` is executed; the instance keeps its sender no longer."""
        with self._kept:
            assert self._kept.wait_for(lambda: id in self.senders, LIMIT_S)
            return self.senders.pop(id)

    def close(self) -> None: ...


class LaterBench:
    """A scheduler that runs on LaterStubs, and what its requests were answered."""

    def __init__(
        self,
        batching: BatchingSpec | None = None,
        *,
        instances: int = 1,
        answer: Answer | None = None,
        window: WindowLimits = DEFAULT_WINDOW,
    ) -> None:
        spec = replace(model_spec(8, batching), decoupled=True)
        self.backends = [LaterStub(number, answer) for number in range(instances)]
        self.backend = self.backends[0]
        self.statistics = ModelStatistics()
        self.scheduler = DynamicBatcher(spec, self.backends, self.statistics, window=window)
        self.responses: list[InferenceResponse] = []
        self._responded = threading.Condition()
        self.scheduler.start()

    def submit(self, id: str) -> StreamedRequest:
        """A request whose caller takes responses."""
        pending = StreamedRequest(InferenceRequest("m", [], id=id), self._on_response)
        self.scheduler.submit(pending)
        return pending

    def submit_plain(self, id: str) -> PendingRequest:
        pending = PendingRequest(InferenceRequest("m", [], id=id), self._on_response)
        self.scheduler.submit(pending)
        return pending

    def _on_response(self, response: InferenceResponse) -> None:
        with self._responded:
            self.responses.append(response)
            self._responded.notify_all()

    def wait(self, count: int) -> list[str]:
        """Wait for `count` responses; each as ID:TEXT, `-` for an empty one, `!` for an error, `.` after the final."""
        with self._responded:
            assert self._responded.wait_for(lambda: len(self.responses) >= count, LIMIT_S), self.responses
            return [described(response) for response in self.responses]


def described(response: InferenceResponse) -> str:
    said = response.outputs[0].array[0].decode() if response.outputs else "-"
    return f"{response.id}:{said if response.error is None else '!'}{'.' if response.final else ''}"


MakeLaterBench = Callable[..., LaterBench]


@contextmanager
def later_benches() -> Iterator[MakeLaterBench]:
    """Makes schedulers. At the end they are closed, with every request answered, and no thread is left."""
    made: list[LaterBench] = []

    def make(*args: object, **options: object) -> LaterBench:
        made.append(LaterBench(*args, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for bench in made:
        for backend in bench.backends:
            backend.senders.clear()
        assert bench.scheduler.close(LIMIT_S)
        assert bench.scheduler.in_flight == 0
    assert instance_threads() == []
