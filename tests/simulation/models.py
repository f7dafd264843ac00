"""Requests with a tag from which the right answer follows, and the stub models that give it.

Answer `number` to the row x of a request is `10 * x + revision + number * 10**6`, where the revision is that of the
loaded version. The answer of a sequence is its state: `31 * state + tag`, from 0 at its START.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.simulation.threads import MS, Event, SimulatedThread, World
from trident.core.backends.backend import BackendInstance, Execution
from trident.core.config.placement import NO_LIMIT, DeviceKind, InstanceLimit, Placement
from trident.core.config.request_check import BatchForm
from trident.core.config.spec import (
    BatchingSpec,
    FlagControl,
    IdControl,
    InputSpec,
    ModelSpec,
    OutputSpec,
    SequenceSpec,
    StateSpec,
)
from trident.core.errors import InvalidRequest, RequestCancelled, ServerError
from trident.core.inference.pending_request import AGAIN, LATER, DeferredOutcome, PendingRequest, ResponseSender
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse, Outputs, OutputTensor
from trident.core.inference.tensors import BY_NAME, Array

INT64, INT32 = BY_NAME["INT64"], BY_NAME["INT32"]
STATE_SIZE = 1 << 40
NUMBERED = 10**6


@dataclass(slots=True)
class Behaviour:
    """How a model answers a request. `count` is that of its responses, or of its iterations.

    `end`: how its last response comes. `wait_ns` is the time between two responses.
    """

    fault: str = ""  # "own": an error of this request; "batch": its batch raises; "submit": its check raises
    count: int = 1
    end: str = "with the last"  # "empty", "dropped", "error", "cancelled", "late"
    wait_ns: int = 0


@dataclass(slots=True, eq=False)
class Asked:
    """A request that a client has submitted, and its outcome."""

    tag: int
    model: str
    client: Any
    rows: int
    width: int
    does: Behaviour
    sequence: Sequenced | None = None
    is_start: bool = False
    is_end: bool = False
    level: int = 1
    expires_ns: int = 0  # 0 for never
    delays: bool = False  # when it expires, instead of being rejected
    content: int = 0  # from which its inputs are made; requests of the same content have the same answer
    parts: list[tuple[InferenceRequest, Asked]] = field(default_factory=list)  # of an ensemble: those of its steps
    pending: PendingRequest | None = None
    begun_ns: int = 0
    revision: int = 0  # the one that served then
    queued_ns: int = 0  # 0 until `submit` has returned
    cancelled_ns: int = 0
    batch: list[Asked] = field(default_factory=list)  # with which it was executed last
    executing: bool = False
    executions: int = 0
    executed_ns: int = 0
    ended_ns: int = 0  # its last execution
    answers: list[InferenceResponse] = field(default_factory=list)
    is_answered: bool = False
    answered_ns: int = 0

    @property
    def waits(self) -> bool:
        """True while it is in the queue of its model for the first time."""
        return bool(self.queued_ns) and not self.executions and not self.is_answered

    @property
    def error(self) -> ServerError | None:
        return self.answers[-1].error if self.answers else None

    def inputs(self) -> list[InputTensor]:
        array = (np.arange(self.rows * self.width, dtype=np.int64) + self.content * 100).reshape(self.rows, self.width)
        return [InputTensor("x", "INT64", array.shape, array)]

    def __str__(self) -> str:
        return f"#{self.tag}"


@dataclass(slots=True, eq=False)
class Sequenced:
    """A sequence of a client. `state` is that after the answers so far."""

    id: int
    state: int = 0
    asked: list[Asked] = field(default_factory=list)
    is_broken: bool = False  # it may have been ended by something else than its END
    active_ns: int = 0


def output(array: Array, name: str = "y") -> OutputTensor:
    return OutputTensor(name, "INT64", array.shape, array)


class Instance:
    """Implements BackendInstance; checks what the scheduler gives it."""

    poisoned = False

    def __init__(self, served: Served, number: int, limit: InstanceLimit = NO_LIMIT) -> None:
        self.placement = Placement(f"{served.spec.name}_0_{number}", DeviceKind.CPU, limit=limit)
        self.need = sum(need.count for need in limit.needs)
        self.served = served
        self.world = served.world
        self.answers_later = served.answers_later
        self.may_run_inline = served.may_run_inline
        self.batch: list[Asked] = []
        self.is_executing = False
        self.is_closed = False
        self._states: dict[int, int] = {}  # by correlation id

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender] = (),
    ) -> Execution:
        world, served = self.world, self.served
        found = [served.asked_for(request) for request in requests]
        batch = self.batch = [asked for asked in found if asked is not None]
        world.note("execute", self.placement.name, *batch)
        self._check(batch, batch_sizes)
        self.is_executing = True
        world.executing += 1
        world.held += self.need
        if self.need and world.held > served.limit:
            world.problem("more of a resource than there is", f"{world.held} instead of {served.limit}")
        for asked in batch:
            asked.executing, asked.batch = True, batch
            asked.executions += 1
            asked.executed_ns = asked.executed_ns or world.now_ns
        duration_ns = served.duration_ns()
        try:
            if duration_ns:
                world.sleep(duration_ns)
            else:
                world.point()
            faulty = [asked for asked in batch if asked.does.fault == "batch"]
            if faulty:
                for asked in batch:
                    if asked.is_start and asked.sequence is not None:
                        self._states[asked.sequence.id] = 0
                raise RuntimeError(f"failed {faulty[0]}")
            outcomes: list[Outputs | Exception | DeferredOutcome] = []
            given = iter(senders) if senders else iter([None] * len(requests))
            for asked, request, sender in zip(found, requests, given, strict=True):
                outcomes.append([] if asked is None else self._outcome(asked, request, sender))
        finally:
            self.is_executing = False
            world.executing -= 1
            world.held -= self.need
            self.batch = []
            for asked in batch:
                asked.executing, asked.ended_ns = False, world.now_ns
        return Execution(outcomes, world.now_ns, world.now_ns)

    def _check(self, batch: Sequence[Asked], sizes: Sequence[int]) -> None:
        problem, spec = self.world.problem, self.served.spec
        if self.is_executing:
            problem("two executions at once", self.placement.name)
        if self.is_closed:
            problem("execution on a closed instance", self.placement.name)
        if sum(sizes) > max(1, spec.max_batch_size) or (len(batch) > 1 and not (spec.batching or spec.sequence)):
            problem("batch too large", f"{sizes} on {self.placement.name}")
        if len({asked.width for asked in batch}) > 1:
            problem("different shapes in a batch", " ".join(map(str, batch)))
        for asked in batch:
            if asked.executing:
                problem("executed by two instances", str(asked))
            if asked.is_answered and self.world.network is None:
                problem("executed after its answer", str(asked))
            if asked.executions or self.world.lag or self.world.network is not None:
                continue  # in a part of a batch; or time passes between its choice, or a cancellation, and this
            if 0 < asked.cancelled_ns < self.world.now_ns:
                problem("executed though cancelled", str(asked))
            if 0 < asked.expires_ns < self.world.now_ns and not asked.delays and asked.sequence is None:
                problem("executed though expired", str(asked))

    def _outcome(
        self, asked: Asked, request: InferenceRequest, sender: ResponseSender | None
    ) -> Outputs | Exception | DeferredOutcome:
        does = asked.does
        if does.fault == "own" or (does.end == "cancelled" and sender is None):
            if asked.is_start and asked.sequence is not None:
                self._states[asked.sequence.id] = 0
            return (InvalidRequest if does.fault else RequestCancelled)(f"failed {asked}")
        outputs = self._outputs(asked, request)
        if sender is None:
            return outputs
        if self.served.is_iterative:
            if asked.executions < does.count:
                sender.send(outputs)
                return AGAIN
            return outputs
        if does.count == 1 and does.end == "with the last" and not does.wait_ns:
            return outputs
        thread = SimulatedThread(target=_send, args=([sender], asked, outputs, self.world), name=f"model-{asked.tag}")
        del sender  # the thread has the only reference, which it drops at its end
        thread.start()
        return LATER

    def _outputs(self, asked: Asked, request: InferenceRequest) -> Outputs:
        arrays = {tensor.name: tensor.array for tensor in request.inputs}
        if asked.sequence is None:
            return [output(arrays["x"] * 10 + self.served.revision)]
        id, start = int(arrays["id"].flat[0]), bool(arrays["start"].flat[0])
        begins = asked.is_start and not (self.served.is_iterative and asked.executions > 1)
        if id != asked.sequence.id or start != begins or not arrays["ready"].all():
            self.world.problem("wrong controls", f"{asked} has id {id}, start {start}")
        before = int(arrays["state"].flat[0]) if "state" in arrays else 0 if start else self._states.get(id, -1)
        state = self._states[id] = (31 * before + asked.tag) % STATE_SIZE
        y = np.array([[state]], np.int64)
        return [output(y), output(y, "state_out")] if "state" in arrays else [output(y)]

    def close(self) -> None:
        if self.is_executing:
            self.world.problem("closed while it executes", self.placement.name)
        self.is_closed = True


def _send(held: list[ResponseSender], asked: Asked, outputs: Any, world: World) -> None:
    """Answer a request as its behaviour says. Only `held` has the sender."""
    sender, does = held.pop(), asked.does
    has_space = Event()
    sender.watch(has_space.set)
    for number in range(does.count):
        while sender.is_full:
            has_space.wait()
            has_space.clear()
        if does.wait_ns:
            world.sleep(does.wait_ns)
        else:
            world.point()
        is_last = number == does.count - 1
        if is_last and does.end in ("error", "cancelled"):
            kind = RequestCancelled if does.end == "cancelled" else InvalidRequest
            sender.send(None, final=True, error=kind(f"failed {asked}"))
        elif not (is_last and does.end == "dropped"):
            numbered = [output(each.array + number * NUMBERED) for each in outputs]
            sender.send(numbered, final=is_last and does.end in ("with the last", "late"))
    if does.end == "empty":
        sender.send(None, final=True)
    elif does.end == "late":
        sender.send(outputs)
    del sender  # an error of a later step may still refer to this frame


class Raising:
    """The validator of a version, which raises unexpected exceptions for some requests."""

    def __init__(self, served: Served, validator: Any) -> None:
        self._served, self._validator = served, validator

    def check(self, request: InferenceRequest) -> BatchForm:
        asked = self._served.asked_for(request)
        if asked is not None and asked.does.fault == "submit":
            raise ZeroDivisionError(f"the check of {asked} fails")
        return self._validator.check(request)


class Model:
    """Implements BackendModel."""

    labels: Mapping[str, tuple[str, ...]] = {}
    trouble = ""

    def describe(self) -> dict[str, str]:
        return {}

    def watch(self, on_change: Callable[[BackendInstance, bool], None]) -> None:
        self.change = on_change

    def processes(self) -> list[Any]:
        return []

    def retain(self, devices: object) -> None: ...

    def close(self) -> None: ...


class Served:
    """A model that is loaded, loaded again and unloaded: its spec, and what its instances need to know of it.

    `durations_ns` are those of executions, of which each draws one.
    """

    def __init__(self, world: World, spec: ModelSpec, asked: Mapping[int, Asked], durations_ns: Sequence[int]) -> None:
        self.world = world
        self.spec = spec
        self.asked = asked
        self.durations_ns = durations_ns
        self.limit = 0  # of the resource that its executions hold
        self.revision = self.serving = 0
        self.absent_until_ns = 0  # when it was loaded last while no version of it served
        self.was_changed = False  # by the operator: its queues and sequences may have ended, or are several
        self.answers_later = spec.decoupled or self.is_iterative
        self.may_run_inline = not self.answers_later
        self.instances: list[Instance] = []

    @property
    def is_iterative(self) -> bool:
        return self.spec.sequence is not None and self.spec.sequence.is_iterative

    def asked_for(self, request: InferenceRequest) -> Asked | None:
        """Return the call that a request belongs to; None for a null request, which fills a slot."""
        if not request.id:
            return None
        asked = self.asked[int(request.id)]
        if asked.model == self.spec.name:
            return asked
        for other, part in asked.parts:
            if other is request:
                return part
        part = Asked(asked.tag, self.spec.name, asked.client, asked.rows, asked.width, self.drawn_behaviour())
        asked.parts.append((request, part))
        return part

    def drawn_behaviour(self) -> Behaviour:
        random = self.world.random
        fault = drawn(random, *[""] * 12, "own", "batch", "submit")
        if not self.answers_later:
            return Behaviour(fault, end=drawn(random, *["with the last"] * 9, "cancelled"))
        if self.is_iterative:
            return Behaviour(fault, drawn(random, 1, 2, 3))
        end = drawn(random, *["with the last", "empty"] * 2, "dropped", "error", "cancelled", "late")
        return Behaviour(fault, drawn(random, 1, 1, 2, 4), end, milliseconds(random, 0, 0, 1))

    def duration_ns(self) -> int:
        return self.world.random.choice(self.durations_ns)


def spec_of(
    name: str, max_batch_size: int, batching: BatchingSpec | None, sequence: SequenceSpec | None, **more: Any
) -> ModelSpec:
    return ModelSpec(
        name=name,
        version=1,
        platform="",
        backend="stub",
        max_batch_size=max_batch_size,
        inputs={"x": InputSpec(name="x", datatype=INT64, dims=(-1,) if max_batch_size else (-1, -1))},
        outputs={"y": OutputSpec(name="y", datatype=INT64, dims=(-1,) if max_batch_size else (-1, -1))},
        batching=batching,
        sequence=sequence,
        **more,
    )


def sequence_spec(*, has_state: bool, **more: Any) -> SequenceSpec:
    state = StateSpec(input_name="state", output_name="state_out", datatype=INT64, dims=(1,))
    return SequenceSpec(
        start=FlagControl(name="start", datatype=INT32, false=0, true=1),
        ready=FlagControl(name="ready", datatype=INT32, false=0, true=1),
        correlation_id=IdControl(name="id", datatype=INT64),
        states=(state,) if has_state else (),
        **more,
    )


def drawn(random: Any, *choices: Any) -> Any:
    return choices[int(random.random() * len(choices))]


def milliseconds(random: Any, *choices: float) -> int:
    return int(drawn(random, *choices) * MS)
