"""One schedule: models, clients and an operator that are drawn from the seed, and what must hold of every answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.simulation.connections import Engine, Link, Network, Socket
from tests.simulation.models import (
    NUMBERED,
    STATE_SIZE,
    Asked,
    Behaviour,
    Instance,
    Model,
    Raising,
    Sequenced,
    Served,
    drawn,
    milliseconds,
    sequence_spec,
    spec_of,
)
from tests.simulation.threads import MS, Event, SimulatedThread, Stuck, World, now_ns, present
from trident.core.config.ensemble import EnsembleStep
from trident.core.config.placement import NO_LIMIT, InstanceLimit, ResourceNeed
from trident.core.config.spec import BatchingSpec, QueuePolicy
from trident.core.errors import (
    BackendFailed,
    DeadlineExceeded,
    InvalidRequest,
    ModelNotReady,
    QueueFull,
    RequestCancelled,
    ServerError,
    ServerStopping,
    UnexpectedError,
)
from trident.core.inference.pending_request import Deferred, LoneRequest, PendingRequest, StreamedRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, Origin
from trident.core.lifecycle.ensembles import ComposedModel
from trident.core.lifecycle.version import ModelVersion
from trident.core.options import ResourceLimit, WindowLimits
from trident.core.remote.calls import EngineGone
from trident.core.remote.engine_client import RemoteEngine
from trident.core.remote.engine_server import EngineServer
from trident.core.response_cache.response_cache import LocalCache
from trident.core.scheduling.context import SchedulingContext
from trident.core.scheduling.dynamic_batcher import LOOK_EVERY_NS
from trident.core.scheduling.rate_limiter import InstanceReservations, RateLimiter
from trident.core.scheduling.response_cache import CachingScheduler
from trident.core.scheduling.scheduler import make_scheduler

ZERO = {"state": np.zeros(1, np.int64)}


SHAPES = ("plain", "plain", "queue", "cached", "limited", "ensemble")
"""Subject of a schedule. "queue": the queue and the batches of one model, without changes by the operator."""
FOR_EVER = sys.maxsize
_FETCHED: Any = SimpleNamespace(release=lambda: None)


class InFlight:
    """The model of an ensemble's step, of which no more than `limit` requests may be in flight."""

    def __init__(self, world: World, version: ModelVersion, limit: int) -> None:
        self._world, self._version, self._limit = world, version, limit
        self.spec = version.spec
        self._count = 0

    def submit(self, pending: PendingRequest) -> None:
        self._count += 1
        if 0 < self._limit < self._count:
            self._world.problem("too many requests of a step", f"{self._count} instead of {self._limit}")
        on_response = pending.on_response

        def respond(response: InferenceResponse) -> None:
            self._count -= response.final
            on_response(response)

        pending.on_response = respond
        self._version.submit(pending)


class Client:
    """A thread that submits requests. Responses count for it when they were flushed, if it wants that."""

    def __init__(self, schedule: Schedule, number: int) -> None:
        self.name = f"client-{number}"
        self.has_flush = schedule.random.random() < 0.5 and schedule.remote is None
        self.flush_fails = schedule.random.random() < 0.1
        self.always_waits = drawn(schedule.random, False, True)
        self.asked: list[Asked] = []
        self.collected = 0
        self._schedule = schedule
        self._progress = Event()

    def respond(self, asked: Asked, response: InferenceResponse) -> None:
        """The callback of its requests."""
        self._schedule.world.point()
        if self.has_flush:
            self.collected += 1
        else:
            self._progress.set()
        self._schedule.check_answer(asked, response)
        if isinstance(asked.pending, StreamedRequest) and not response.final:
            SimulatedThread(target=self._take, args=(asked.pending,), name=f"{self.name}-takes").start()
        if asked.tag % 7 == 0:
            raise RuntimeError(f"the callback of {asked} fails")

    def _take(self, pending: StreamedRequest) -> None:
        self._schedule.world.sleep(milliseconds(self._schedule.random, 0, 0, 1, 3))
        pending.take()

    def flush(self) -> None:
        self._schedule.world.note("flush", self.name)
        self.note_sent()
        if self.flush_fails:
            raise RuntimeError(f"the flush of {self.name} fails")

    def note_sent(self) -> None:
        self.collected = 0
        self._progress.set()

    def wait_for(self, asked: Sequence[Asked], timeout_s: float | None = None) -> None:
        """Block until those are answered."""
        while not all(each.is_answered for each in asked):
            self._progress.clear()
            if not self._progress.wait(timeout_s):
                return


class Schedule:
    """Made and run once. `problems` is empty if everything held."""

    def __init__(self, seed: int, size: int = 8, shape: str = "") -> None:
        """`shape` is one of SHAPES; without one it is drawn."""
        self.seed = seed
        self.world = World(seed)
        self.random = self.world.random
        self.size = size
        self.shape = shape or drawn(self.random, *SHAPES)
        self.asked: dict[int, Asked] = {}
        self.served: dict[str, Served] = {}
        self.current: dict[str, ModelVersion] = {}
        self.schedulers: list[Any] = []
        self.clients: list[Client] = []
        self.limiter: RateLimiter | None = None
        self.limits: tuple[InstanceLimit, ...] = (NO_LIMIT,)
        self.engine: Engine | None = None
        self.server: EngineServer | None = None
        self.remote: RemoteEngine | None = None
        self.gone_ns = 0  # when there was no engine last
        self.cache = LocalCache(1 << 16)
        self._behaviours: dict[tuple[str, int], Behaviour] = {}
        self.is_ending = False
        self._begun: list[Asked] = []

    def run(self) -> Schedule:
        with present(self.world):
            if not self.world.lag:
                self.world.before_advance = self._look
            try:
                self.world.run(self._share if self.random.random() < 0.01 else self._main)
            except Stuck as stuck:
                self.world.problem("stuck", str(stuck))
            if not self.world.problems:
                self._check_end()
        return self

    @property
    def problems(self) -> list[tuple[str, str, BaseException | None]]:
        return self.world.problems

    # --- what happens

    def _main(self) -> None:
        random = self.random
        shape = self.shape
        options: tuple[ResourceLimit, ...] = ()
        if shape == "limited":
            options = drawn(random, (), (ResourceLimit("r", 2),), (ResourceLimit("r", 3),))
            self.limiter = RateLimiter(options)
            needs = [ResourceNeed("r", count, is_global=True) for count in (1, 1, 2)]
            self.limits = tuple(InstanceLimit((need,), priority) for need in needs for priority in (1, 2))
        for number in range({"ensemble": 2, "queue": 1}.get(shape) or drawn(random, 1, 1, 2)):
            served = Served(self.world, self._drawn_spec(f"m{number}", shape), self.asked, self._durations())
            served.limit = options[0].count if options else 2
            self.served[served.spec.name] = served
            self._load(served, drawn(random, 1, 1, 2, 3))
        if shape == "ensemble":
            self._compose()
        if shape != "queue" and random.random() < 0.25:
            self._put_between()
        for number in range(drawn(random, 1, 2, 3)):
            client = Client(self, number)
            self.clients.append(client)
        threads = [SimulatedThread(target=self._client, args=(each,), name=each.name) for each in self.clients]
        if shape != "queue" and random.random() < 0.4:
            threads.append(SimulatedThread(target=self._operator, name="operator"))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if random.random() < 0.5:
            for client in self.clients:
                client.wait_for(client.asked)
        self._unload_all()

    def _share(self) -> None:
        """Let two models of priorities 1 and 2 want one resource all the time."""
        self.limiter = RateLimiter((ResourceLimit("r", 1),))
        client = Client(self, 0)
        for priority in (1, 2):
            spec = spec_of(f"m{priority}", 1, None, None)
            served = self.served[spec.name] = Served(self.world, spec, self.asked, (MS,))
            served.limit, served.was_changed = 1, True  # which of the queues is served is not the order of requests
            self.limits = (InstanceLimit((ResourceNeed("r", 1, is_global=True),), priority),)
            self._load(served, 1)
        for _ in range(25):
            for served in self.served.values():
                self._submit(client, served, None, None, is_alone=False)
        client.wait_for(client.asked)
        names = [entry[3] for entry in self.world.trace if entry[2] == "execute"][:25]
        if not self.world.lag and names.count("m1_0_0") < 1.8 * names.count("m2_0_0"):
            self.world.problem("wrong shares", f"{names.count('m1_0_0')} to {names.count('m2_0_0')} for 1 to 2")
        self._unload_all()

    def _unload_all(self) -> None:
        self.is_ending = True
        if self.remote is not None and self.server is not None:
            self.remote.close()
            self.server.stop()
        for served in reversed(self.served.values()):
            version = self.current.get(served.spec.name)
            if version is not None:
                self._unload(served, version)

    def _put_between(self) -> None:
        """Put a front end between the clients and the models."""
        self.world.network = Network()
        listener = Socket()
        listener.listen("engine")
        self.gone_ns = FOR_EVER
        self.engine = Engine(self.find)
        self.server = EngineServer(self.engine, listener)  # type: ignore[arg-type]
        self.server.start()
        self.remote = RemoteEngine("engine", Link(), 0, self._note_engine)
        self.remote.start()
        if self.random.random() < 0.3:
            SimulatedThread(target=self._cut, name="network").start()

    def _note_engine(self) -> None:
        """The engine is known, or was lost."""
        assert self.remote is not None
        if self.gone_ns == FOR_EVER or not self.remote.is_ready():
            self.gone_ns = self.world.now_ns if self.remote.is_ready() else FOR_EVER

    def _cut(self) -> None:
        self.world.sleep(milliseconds(self.random, 0, 1, 2, 5))
        self.world.note("the connection is lost")
        for served in self.served.values():
            self._break_sequences(served)
        self.world.network.cut()

    def _durations(self) -> tuple[int, ...]:
        return drawn(self.random, (0,), (0, MS), (MS, 2 * MS, 5 * MS), (10 * MS, 40 * MS))

    def _drawn_spec(self, name: str, shape: str) -> Any:
        random = self.random
        kind = drawn(
            random, "single", "batched", "batched", "priorities", "priorities", "oldest", "direct", "iterative"
        )
        if shape == "queue":
            kind = drawn(random, "batched", "priorities")
        size = drawn(random, 1, 2, 4, 8) if shape != "queue" else drawn(random, 2, 8)
        cached = shape == "cached" and kind in ("single", "batched", "priorities")
        is_decoupled = not cached and shape != "queue" and random.random() < 0.3
        if shape == "ensemble":
            kind = drawn(random, "single", "batched")
            size = 8
            is_decoupled = name == "m0" and random.random() < 0.6
        if kind == "single":
            return spec_of(name, size, None, None, decoupled=is_decoupled, response_cache=cached)
        preferred = tuple({drawn(random, 1, 2, size), size} & set(range(1, size + 1))) if random.random() < 0.6 else ()
        delay_ns = milliseconds(random, 0, 1, 3, 10)
        if kind in ("batched", "priorities"):
            batching = BatchingSpec(
                preferred_batch_sizes=tuple(sorted(preferred)) or (size,),
                max_queue_delay_ns=delay_ns,
                preserve_ordering=kind == "batched" and random.random() < 0.5,
                priority_levels=3 if kind == "priorities" else 0,
                default_priority_level=2 if kind == "priorities" else 0,
                default_policy=self._drawn_policy(),
                level_policies={1: self._drawn_policy()} if kind == "priorities" and random.random() < 0.5 else {},
            )
            return spec_of(name, size, batching, None, decoupled=is_decoupled, response_cache=cached)
        sequence = sequence_spec(
            has_state=random.random() < 0.5,
            is_direct=kind == "direct",
            is_iterative=kind == "iterative",
            slots=size if kind == "direct" else drawn(random, 1, 2, 3),
            max_idle_ns=milliseconds(random, 5, 20, 1000),
            preferred_batch_sizes=tuple(sorted(preferred)),
            max_queue_delay_ns=delay_ns,
            preserve_ordering=random.random() < 0.2,
        )
        return spec_of(name, size, None, sequence)

    def _drawn_policy(self) -> QueuePolicy:
        random = self.random
        if random.random() < 0.5:
            return QueuePolicy()
        return QueuePolicy(
            delay_on_timeout=random.random() < 0.3,
            default_timeout_ns=milliseconds(random, 0, 5, 12),
            allow_timeout_override=random.random() < 0.5,
            max_queue_size=drawn(random, 0, 2, 4),
        )

    def find(self, name: str, number: int) -> ModelVersion:
        version = self.current.get(name)
        if version is None:
            raise ModelNotReady(f"'{name}' is not loaded")
        return version

    def _load(self, served: Served, count: int) -> ModelVersion:
        world, spec = self.world, served.spec
        served.revision = revision = served.revision + 1
        made = Served(world, spec, self.asked, served.durations_ns)
        made.revision = revision
        made.limit = served.limit
        made.instances = [Instance(made, number, self._drawn_limit()) for number in range(count)]
        version = ModelVersion(spec.name, 1, "drawn", self.find)
        version.configure(None, spec)  # type: ignore[arg-type]
        version._validator = Raising(made, version._validator)  # type: ignore[assignment]
        if self.limiter is not None:
            version.reservations = InstanceReservations(self.limiter)
            for instance in made.instances:
                version.reservations.add(instance, spec.name)
        context = SchedulingContext(
            spec,
            version.statistics,
            initial_states=ZERO,
            window=WindowLimits(drawn(self.random, 1, 2, 64)),
            reservations=version.reservations,
            clock=now_ns,
        )
        scheduler = make_scheduler(context, made.instances)
        if spec.response_cache:
            scope = self.cache.open_scope(spec.name, 1, lambda: None)
            scheduler = CachingScheduler(context, scheduler, self.cache, scope, version)
        self.schedulers.append(scheduler)
        version.serve(Model(), made.instances, scheduler, _FETCHED)
        served.instances = made.instances
        world.note("loaded", spec.name, revision)
        served.absent_until_ns = world.now_ns if spec.name not in self.current else served.absent_until_ns
        self.current[spec.name], served.serving = version, revision
        self._note_change()
        return version

    def _drawn_limit(self) -> InstanceLimit:
        return drawn(self.random, *self.limits)

    def _compose(self) -> None:
        """Load the ensemble `e`, whose steps are m0 and m1."""
        world, random = self.world, self.random
        steps = (
            EnsembleStep(model="m0", version=-1, inputs=(("x", "x"),), outputs=(("y", "between"),)),
            EnsembleStep(model="m1", version=-1, inputs=(("x", "between"),), outputs=(("y", "y"),)),
        )
        is_decoupled = self.served["m0"].spec.decoupled
        spec = replace(spec_of("e", 8, None, None, decoupled=is_decoupled), platform="ensemble")
        served = self.served["e"] = Served(world, spec, self.asked, (0,))
        version = ModelVersion("e", 1, "drawn", self.find)
        version.configure(None, spec)  # type: ignore[arg-type]
        model = ComposedModel([self.current["m0"], self.current["m1"]])
        version.steps = model.versions
        limit = drawn(random, 0, 1, 2)
        models = [InFlight(world, each, limit) for each in model.versions]
        context = SchedulingContext(
            spec, version.statistics, steps=tuple(zip(steps, models, strict=True)), max_in_flight=limit, clock=now_ns
        )
        scheduler = make_scheduler(context, [])
        self.schedulers.append(scheduler)
        version.serve(model, [], scheduler, _FETCHED)
        self.current["e"], served.was_changed = version, True  # its requests are in no queue

    def _unload(self, served: Served, version: ModelVersion) -> None:
        name = served.spec.name
        if self.current.get(name) is version:
            del self.current[name]
            self._note_change()
        self.world.note("unload", name)
        self._retire(version)

    def _note_change(self) -> None:
        """Other versions serve."""
        if self.engine is not None and self.server is not None:
            self.engine.generation += 1
            self.server.push_state()

    def _retire(self, version: ModelVersion) -> None:
        """Unload a version on a thread of its own: steps of an ensemble wait until that is unloaded."""
        version.begin_unload("drawn")
        SimulatedThread(target=version.finish_unload, name=f"unload-{version.name}").start()

    def _operator(self) -> None:
        world, random = self.world, self.random
        world.sleep(milliseconds(random, 0, 1, 2, 5))
        served = drawn(random, *[each for name, each in self.served.items() if name != "e"])
        version = self.current[served.spec.name]
        action = drawn(random, "reload", "reload", "add", "remove", "forget", "unload")
        world.note(action, served.spec.name)
        scheduler = version._scheduler
        assert scheduler is not None
        self._break_sequences(served)
        if action == "reload":
            self._load(served, drawn(random, 1, 2))
            self._retire(version)
        elif action == "unload":
            self._unload(served, version)
            if random.random() < 0.5:
                world.sleep(MS)
                self._load(served, 1)
        elif action == "forget":
            scheduler.forget(served.instances[0])
        else:
            if action == "add" or len(served.instances) == 1:
                added = Instance(served, 7, self._drawn_limit())
                version.reservations.add(added, served.spec.name)
                added.served = served.instances[0].served
                scheduler.add(added)
                served.instances = [*served.instances, added]
                version._instances.append(added)
            leaving = served.instances[0]
            if action == "remove":
                scheduler.remove(leaving)()
                version._instances.remove(leaving)
                served.instances = served.instances[1:]
                version.reservations.remove(leaving)
                leaving.close()

    def _break_sequences(self, served: Served) -> None:
        for asked in self.asked.values():
            if asked.sequence is not None and asked.model == served.spec.name:
                asked.sequence.is_broken = True
        served.was_changed = True

    # --- clients

    def _client(self, client: Client) -> None:
        random, world = self.random, self.world
        served = drawn(random, *self.served.values())
        sequence = None
        world.sleep(milliseconds(random, 0, 0, 0.1, 0.2))
        for _ in range(drawn(random, 1, 2, 3)):
            deferred = drawn(random, None, Deferred()) if self.remote is None else None
            burst: list[Asked] = []
            is_alone = deferred is not None and random.random() < 0.3
            for _ in range(1 if is_alone else drawn(random, 1, 2, 3)):
                if len(self.asked) >= self.size:
                    break
                if served.spec.sequence is not None and (sequence is None or sequence.asked[-1].is_end):
                    sequence = self._new_sequence(client)
                burst.append(self._submit(client, served, sequence, deferred, is_alone))
            if deferred is not None:
                deferred.run()
            if burst and random.random() < (0.4 if self.shape == "queue" else 0.2):
                world.sleep(milliseconds(random, 0, 0, 1, 4))
                self._cancel(drawn(random, *burst))
            if client.always_waits or random.random() < 0.3:
                client.wait_for(burst)
            world.sleep(milliseconds(random, 0, 0.3, 0.7, 1, 2, 7, 30))

    def _new_sequence(self, client: Client) -> Sequenced:
        return Sequenced(1 + len({id(asked.sequence) for asked in self.asked.values()}))

    def _cancel(self, asked: Asked) -> None:
        if asked.is_answered or asked.pending is None:
            return
        self.world.note("cancel", asked)
        asked.cancelled_ns = self.world.now_ns
        if asked.sequence is not None:
            asked.sequence.is_broken = True
        asked.pending.cancel()

    def _submit(
        self, client: Client, served: Served, sequence: Sequenced | None, deferred: Deferred | None, is_alone: bool
    ) -> Asked:
        random, world, spec = self.random, self.world, served.spec
        tag = 1 + len(self.asked)
        rows = 1 if sequence is not None else 1 + int(random.random() * max(1, spec.max_batch_size))
        if self.shape == "queue":
            rows = min(rows, drawn(random, 1, 2, 8))
        width = 1 if random.random() < 0.9 or sequence is not None else 2
        asked = Asked(tag, spec.name, client, rows, width, served.drawn_behaviour(), sequence)
        asked.content = tag
        if spec.response_cache:
            asked.content = asked.width = drawn(random, 1, 2)
            asked.rows = rows = 1
            asked.does = self._behaviours.setdefault((spec.name, asked.content), asked.does)
        self.asked[tag] = asked
        request = InferenceRequest(spec.name, asked.inputs(), id=str(tag))
        if sequence is not None:
            asked.is_start = not sequence.asked
            asked.is_end = served.is_iterative or random.random() < 0.3
            sequence.asked.append(asked)
            request.correlation_id = sequence.id
            request.sequence_start, request.sequence_end = asked.is_start, asked.is_end
            sequence.active_ns = world.now_ns
        if random.random() < 0.3:
            request.timeout_us = drawn(random, 1_000, 3_000, 20_000)
        if spec.batching is not None:
            request.priority = drawn(random, 0, 1, 2, 3, 9) if spec.batching.priority_levels else 0
            self._note_policy(asked, request, spec.batching)
        elif sequence is not None and request.timeout_us:
            asked.expires_ns = world.now_ns + request.timeout_us * 1000
        flush = client.flush if client.has_flush else None
        kind: Callable[..., PendingRequest] = PendingRequest
        if served.answers_later and not is_alone:
            kind = drawn(random, PendingRequest, StreamedRequest)
        elif is_alone:
            kind = LoneRequest
        on_response = partial(client.respond, asked)
        pending = asked.pending = kind(request, on_response, defer=deferred and deferred.add, flush=flush)
        client.asked.append(asked)
        world.note("submit", asked, spec.name, f"rows {rows}", *([f"in {sequence.id}"] if sequence else []))
        asked.begun_ns, asked.revision = world.now_ns, served.serving
        try:
            model = self.find(spec.name, -1) if self.remote is None else self.remote.model(spec.name)
        except ServerError as error:
            pending.refuse(error)
            client.note_sent()
            return asked
        world.point()
        model.submit(pending)
        if self.remote is not None:
            return asked  # it is on its way
        if asked.is_answered:
            client.note_sent()  # what `submit` answers, the submitting thread sends
        asked.queued_ns = world.now_ns
        if sequence is not None:
            sequence.active_ns = world.now_ns
        return asked

    def _note_policy(self, asked: Asked, request: InferenceRequest, batching: BatchingSpec) -> None:
        level = request.priority if 1 <= request.priority <= batching.priority_levels else 0
        asked.level = level or batching.default_priority_level
        policy = batching.level_policies.get(asked.level, batching.default_policy)
        timeout_ns = policy.default_timeout_ns
        if policy.allow_timeout_override and 0 < request.timeout_us * 1000 < timeout_ns:
            timeout_ns = request.timeout_us * 1000
        asked.expires_ns = self.world.now_ns + timeout_ns if timeout_ns else 0
        asked.delays = policy.delay_on_timeout

    # --- what must hold of an answer

    def check_answer(self, asked: Asked, response: InferenceResponse) -> None:
        world, problem = self.world, self.world.problem
        final = "." if response.final else ""
        said = (
            type(response.error).__name__
            if response.error
            else ",".join(str(each.array.flat[0]) for each in response.outputs)
        )
        world.note("answer", f"{asked}{final}", said)
        if asked.is_answered:
            problem("answered twice", str(asked))
        if response.id != str(asked.tag) or response.model_name != asked.model:
            problem("another request's answer", f"{asked} got id {response.id} of {response.model_name}")
        if response.error is not None:
            if not response.final:
                problem("an error that is not final", str(asked))
            self._check_error(asked, response.error)
        else:
            self._check_outputs(asked, response)
        asked.answers.append(response)
        if response.final:
            if not isinstance(response.error, EngineGone):
                self._check_order(asked, response)
            asked.is_answered = True
            asked.answered_ns = world.now_ns
            if asked.sequence is not None:
                asked.sequence.active_ns = world.now_ns

    def _check_order(self, asked: Asked, response: InferenceResponse) -> None:
        """The model may have to answer what it executes, or has in the cache, in the order in which it came."""
        served = self.served[asked.model]
        spec = served.spec
        if spec.batching is None or not spec.preserves_ordering or served.was_changed:
            return
        is_result = response.error is None or response.origin is Origin.FAILED
        if is_result if spec.response_cache else asked.executions:
            for other in asked.client.asked[: asked.client.asked.index(asked)]:
                leaves = not other.executions and (other.cancelled_ns or 0 < other.expires_ns <= self.world.now_ns)
                if other.model == asked.model and not (other.is_answered or leaves):
                    self.world.problem("answers out of order", f"{asked} before {other}")

    def _check_outputs(self, asked: Asked, response: InferenceResponse) -> None:
        problem, does, sequence = self.world.problem, asked.does, asked.sequence
        outputs = {tensor.name: tensor.array for tensor in response.outputs}
        if not outputs:
            is_right = does.end == "empty" or asked.model == "e" or asked.cancelled_ns
            if not (response.final and is_right):
                problem("an empty answer", str(asked))
            return
        if does.fault and asked.model != "e":
            problem("success of a request that fails", str(asked))
        y = outputs["y"]
        if sequence is not None:
            sequence.state = (31 * sequence.state + asked.tag) % STATE_SIZE
            if int(y.flat[0]) != sequence.state and not any(isinstance(e.error, EngineGone) for e in sequence.asked):
                problem("wrong state", f"{asked} got {int(y.flat[0])} instead of {sequence.state}")
            return
        x = asked.inputs()[0].array
        factor = 100 if asked.model == "e" else 10
        number, revision = divmod(int(y.flat[0] - x.flat[0] * factor), NUMBERED * factor // 10)
        if y.shape != x.shape or len(np.unique(y - x * factor)) > 1:
            problem("another request's outputs", f"{asked} got {y.tolist()}")
        if number != len(asked.answers) and not asked.cancelled_ns:
            problem("responses out of order", f"{asked} got {number} after {len(asked.answers)}")
        if asked.model == "e":
            revision -= 11  # both steps run on the versions with which it was loaded
        if not asked.revision <= revision <= self.served[asked.model].revision:
            problem("the answer of no version", f"{asked} got revision {revision}")

    def _check_error(self, asked: Asked, error: ServerError) -> None:
        world, sequence = self.world, asked.sequence
        executed = [asked, *[part for _, part in asked.parts]]
        text = error.message
        if "failed #" in text:
            tag = int(text.partition("#")[2])
            is_right = any(_may_blame(each, tag, self.served[each.model]) for each in executed)
        elif isinstance(error, BackendFailed):
            was_dropped = any(each.does.end == "dropped" for each in executed)
            is_right = (was_dropped and "dropped" in text) or "between two iterations" in text
        elif isinstance(error, RequestCancelled):
            is_right = bool(asked.cancelled_ns) or (sequence is not None and _any_cancelled(sequence))
        elif isinstance(error, DeadlineExceeded):
            expires_ns = [asked.expires_ns] if sequence is None else [each.expires_ns for each in sequence.asked]
            is_right = any(0 < each <= world.now_ns for each in expires_ns) or asked.model == "e"
        elif isinstance(error, QueueFull):
            is_right = True
        elif isinstance(error, UnexpectedError):
            is_right = any(each.does.fault == "submit" for each in executed)
            if sequence is not None:
                sequence.is_broken = True  # its START may be missing
        elif isinstance(error, ServerStopping | ModelNotReady):
            served = self.served[asked.model]
            is_right = asked.model not in self.current or served.absent_until_ns >= asked.begun_ns
        elif isinstance(error, EngineGone):
            assert self.remote is not None
            is_right = self.is_ending or asked.begun_ns <= self.gone_ns or not self.remote.is_ready()
        elif isinstance(error, InvalidRequest) and "START" in text and sequence is not None:
            is_right = sequence.is_broken = self._may_have_ended(sequence, asked)
        else:
            is_right = False
        if not is_right:
            world.problem("wrong error", f"{asked}: {type(error).__name__}: {text}")

    def _may_have_ended(self, sequence: Sequenced, asked: Asked) -> bool:
        served = self.served[asked.model]
        assert served.spec.sequence is not None
        before = sequence.asked[: sequence.asked.index(asked)]
        last_ns = max([max(each.queued_ns, each.ended_ns) for each in before], default=0)
        return (
            sequence.is_broken
            or any(0 < each.expires_ns <= self.world.now_ns for each in sequence.asked)
            or self.world.now_ns - last_ns >= served.spec.sequence.max_idle_ns
            or any(each.error is not None and each is not asked for each in before[:1])
            or served.was_changed
        )

    # --- what must hold whenever the clock moves on: nothing can run before its time

    def _look(self, until_ns: int) -> None:
        if not self.world.executing:
            self._check_flushed()  # while a batch is executed again in parts, what its first parts gave waits
        for served in self.served.values():
            spec = served.spec
            if spec.sequence is None and not spec.response_cache and not served.was_changed:
                self._look_at_queue(served)

    def _check_flushed(self) -> None:
        for client in self.clients:
            if client.collected:
                self.world.problem("not flushed", client.name)

    def _look_at_queue(self, served: Served) -> None:
        world, now_ns, batching = self.world, self.world.now_ns, served.spec.batching
        queue = [each for each in self.asked.values() if each.model == served.spec.name and each.waits]
        for asked in queue:
            if not asked.delays and 0 < asked.expires_ns < now_ns - LOOK_EVERY_NS:
                world.problem("the timeout did not fire", str(asked))
        leaving = any(asked.cancelled_ns for asked in queue)
        queue = [each for each in queue if not each.cancelled_ns and (each.delays or not 0 < each.expires_ns <= now_ns)]
        if not queue:
            return
        executed = [asked for instance in served.instances for asked in instance.batch if asked.begun_ns]
        begun = [asked for asked in executed if asked.executed_ns == now_ns]
        for asked in begun:
            for other in queue:
                if other.queued_ns < now_ns and other.level < asked.level:
                    world.problem("priority inverted", f"{asked} runs before {other}")
                is_older = other.queued_ns < asked.begun_ns and other.level == asked.level
                if is_older and not (other.delays and 0 < other.expires_ns <= now_ns):
                    world.problem("overtaken", f"{asked} runs before {other}")
        # An instance may wait for resources, and its thread may execute the next step of an ensemble.
        others_count = self.limiter is not None or "e" in self.served
        if all(instance.is_executing for instance in served.instances) or (others_count and world.executing):
            return
        delay_ns = batching.max_queue_delay_ns if batching is not None else 0
        for asked in queue:
            if now_ns - asked.queued_ns >= delay_ns:
                world.problem("waits past its delay", f"{asked} while an instance is idle")
        if batching is None or "e" in self.served:
            return
        if len({asked.width for asked in queue}) > 1:
            world.problem("waits though the batch cannot grow", " ".join(map(str, queue)))
        rows = 0
        arrivals = {(asked.level, asked.queued_ns): asked.client for asked in queue}
        if leaving or any(arrivals[asked.level, asked.queued_ns] is not asked.client for asked in queue):
            return  # one that was cancelled still counts, or the order of simultaneous requests is not known
        # A request whose timeout has passed, and only delays it, is behind the others of its level.
        delayed = {asked for asked in queue if 0 < asked.expires_ns <= now_ns}
        if len(delayed) > len({asked.level for asked in delayed}):
            return  # their order is not known
        for asked in sorted(queue, key=lambda each: (each.level, each in delayed, each.queued_ns)):
            rows += asked.rows
            if rows in batching.preferred_batch_sizes or rows >= max(batching.preferred_batch_sizes):
                world.problem("a full batch waits", " ".join(map(str, queue)))
                break

    # --- what must hold at the end

    def _check_end(self) -> None:
        problem = self.world.problem
        for asked in self.asked.values():
            if not asked.is_answered:
                problem("never answered", str(asked))
        self._check_flushed()
        for scheduler in self.schedulers:
            if scheduler.queued or scheduler.in_flight:
                problem("left open", f"{scheduler.queued} queued, {scheduler.in_flight} in flight")


def _may_blame(asked: Asked, tag: int, served: Served) -> bool:
    """True if `asked` may fail because of the request `tag`: it is that one, or was answered with it, or like it."""
    if served.spec.response_cache and tag != asked.tag:
        return bool(asked.does.fault) or asked.does.end == "cancelled"
    if tag != asked.tag:  # what is answered through senders is not executed again in parts
        return served.answers_later and any(each.tag == tag and each.does.fault == "batch" for each in asked.batch)
    return bool(asked.does.fault) or asked.does.end in ("error", "cancelled")


def _any_cancelled(sequence: Sequenced) -> bool:
    return any(asked.cancelled_ns or isinstance(asked.error, EngineGone) for asked in sequence.asked)
