"""One version of a model: its configuration, its state, and its scheduler while it is ready."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from trident.core.backends.backend import (
    BackendInstance,
    BackendModel,
    EndableInstance,
    SharingModel,
    ShrinkableModel,
    StartingModel,
)
from trident.core.borders import guarded
from trident.core.config.ensemble import EnsembleStep
from trident.core.config.placement import Placement
from trident.core.config.request_check import BatchForm, RequestValidator
from trident.core.config.resolve import PAYLOAD_LOG, histogram_buckets, switch
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import ModelSpec
from trident.core.errors import (
    UNEXPECTED,
    ModelCold,
    ModelNotReady,
    OutOfMemory,
    QueueFull,
    ServerError,
    ServerStopping,
)
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import CachedAnswer, InferenceResponse, RegionRequest
from trident.core.lifecycle.attempt import LoadAttempt
from trident.core.lifecycle.memory import Holding, MemoryLedger
from trident.core.lifecycle.state import UNLOADED, ModelState, VersionState
from trident.core.observability.latencies import LatencyMeters
from trident.core.observability.metrics.custom_metrics import CustomMetrics
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.payload_log.log import PayloadLog
from trident.core.observability.statistics import DeviceMemoryMetrics, FailureReason, ModelProcessMetrics
from trident.core.observability.switches import SWITCHES
from trident.core.observability.tracing.trace import TraceOptions
from trident.core.observability.tracing.tracer import Tracer
from trident.core.options import LatencyOptions
from trident.core.repository.content_digest import ContentDigest
from trident.core.repository.repository import ModelDirectory
from trident.core.repository.sources import Fetched
from trident.core.scheduling.context import SchedulingContext
from trident.core.scheduling.queue import COUNTING
from trident.core.scheduling.rate_limiter import InstanceReservations, RateLimiter
from trident.core.scheduling.scheduler import Scheduler
from trident.core.shared_memory import Regions, attach

_log = logging.getLogger("trident.lifecycle")


_OVERDUE = "its model is unloaded, and it did not end its executions within {:g} s"

# The versions that the steps of the ensemble of this name run on, by step. Raises ConfigInvalid.
FindSteps = Callable[[str, Sequence[EnsembleStep]], Sequence["ModelVersion"]]
# The version that serves now for a name and a number, -1 for the latest. Raises the ServerErrors of a lookup.
Find = Callable[[str, int], "ModelVersion"]
# Returns the scheduler of a version, or one around it.
Wrap = Callable[[Scheduler, "ModelVersion", SchedulingContext], Scheduler]


# Functions, because mypyc compiles no lambda in the body of a dataclass.
def _ignore(device: str) -> None: ...


def _no_tracer() -> Tracer:
    return Tracer(TraceOptions())


def _no_memory() -> MemoryLedger:
    return MemoryLedger(lambda devices: {}, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """The parts that all versions of a server share.

    `gpu_uuids` are indexed by GPU number. `on_device_lost` is called with a GPU (`Placement.device`) on which nothing
    can run any more. `metrics` are those that models make. `wraps` are applied to each scheduler, in their order.
    `rate_limiter` is None in a server without one, and so is `payload_log`. `regions` are those of the clients' shared
    memory. `memory` admits loads onto the devices that it knows; by default it knows none.
    """

    gpu_uuids: Sequence[str] = ()
    on_device_lost: Callable[[str], None] = _ignore
    metrics: CustomMetrics = field(default_factory=CustomMetrics)
    wraps: Sequence[Wrap] = ()
    rate_limiter: RateLimiter | None = None
    regions: Regions = field(default_factory=Regions)
    tracer: Tracer = field(default_factory=_no_tracer)
    payload_log: PayloadLog | None = None
    memory: MemoryLedger = field(default_factory=_no_memory)


class ModelVersion:
    """Made when loading begins; ends as failed (`fail`), or serves (`serve`) until `begin_unload` and `finish_unload`.
    A reload makes a new one. While it serves, front ends use it as a ServedModel.

    Any thread may call `submit`, `hold` and `release`; only loader threads call the other methods. `configure` sets
    `config` and `spec` before the version is ready. `reload_failure` is why a newer version did not replace it.
    `restriction` says how it deviates from its configuration, and why. `gone` is set when it is unloaded and its memory
    is free. `ran_out_of_memory`: its load failed for lack of memory. `hint` is the cure of its failed load, if there is
    one. `origin` is what log lines add to its name: ` from FOLDER` for a model whose name is only a hash, otherwise
    empty. `steps` are the versions that the steps of an ensemble run on, or with which it failed. `content` are the
    files that it was loaded from. `attempt` is its load, or the latest change of its instances. `reservations` are
    those of its instances on the resources that executions hold. `memory` are the bytes that it holds on the devices of
    which the server keeps a ledger; None if it runs on none of them. `unloaded_because` is the reason that the index
    shows at the end.
    """

    config: ModelConfig
    spec: ModelSpec

    def __init__(
        self, name: str, version: int, cause: str, find: Find, origin: str = "", parts: EngineParts | None = None
    ) -> None:
        parts = parts or EngineParts()
        self.name = name
        self.version = version
        self.origin = origin
        self.state = VersionState(name, version, cause, origin)
        self.statistics = ModelStatistics()
        self.load_seconds = 0.0
        self.description: dict[str, str] = {}
        self.gpu_uuid: str | None = None
        self.reload_failure = ""
        self.restriction = ""
        self.hint = ""
        self.ran_out_of_memory = False
        self.gone = threading.Event()
        self.steps: tuple[ModelVersion, ...] = ()
        self.content: ContentDigest | None = None
        self.reservations = InstanceReservations(parts.rate_limiter)
        self.attempt = LoadAttempt(name)
        self.memory: Holding | None = None
        self.unloaded_because = UNLOADED
        self._find = find
        self._parts = parts
        self._tracer = parts.tracer
        self._trace_gate = parts.tracer.gate
        self._payload_log: PayloadLog | None = None
        self._validator: RequestValidator | None = None
        self._scheduler: Scheduler | None = None
        # Looks its answers up in the memory of this process; None without a cache there.
        self._answers: Callable[[InferenceRequest, int | None], InferenceResponse | None] | None = None
        self._model: BackendModel | None = None
        self._instances: list[BackendInstance] = []
        self._paused: PausedInstances | None = None
        self._fetched: Fetched | None = None
        # Notified when the last hold is released, when the wait for it is abandoned, and when a removed instance is
        # closed.
        self._released = threading.Condition()
        # The instances that were removed and are not closed: they may have sequences or streams.
        self._leaving: list[BackendInstance] = []
        self.holds = 0
        self._is_leaving = False
        self._is_abandoned = False
        self._started = time.monotonic()

    @property
    def is_ready(self) -> bool:
        return self.state.current is ModelState.READY

    @property
    def trouble(self) -> str:
        """The reason why it cannot serve at the moment although it is ready; "" if it can."""
        model = self._model  # read once: the unload sets it to None
        return model.trouble if model is not None else ""

    def answers_ready(self) -> bool:
        """Return True if it is ready and its model confirms that. Blocks until the model answers; logs its reason."""
        model = self._model
        if not self.is_ready or model is None:
            return self.is_ready
        try:
            model.check_ready()
        except ServerError as error:
            _log.error("Model '%s' version %d is not ready: %s", self.name, self.version, error.message)
            return False
        return True

    def release_memory(self) -> None:
        model = self._model
        if isinstance(model, SharingModel):
            model.release_memory()

    def processes(self) -> list[ModelProcessMetrics]:
        model = self._model
        return model.processes() if model is not None else []

    @property
    def sequences(self) -> tuple[int, int, int] | None:
        """See SequenceBatcher; None for a model without sequences, whose scheduler knows nothing of them."""
        found: tuple[int, int, int] | None = getattr(self._scheduler, "sequences", None)
        return found

    @property
    def device_bytes(self) -> dict[str, int]:
        memory = self.memory  # read once: the unload sets it to None
        return memory.bytes if memory is not None else {}

    def memory_metrics(self) -> tuple[DeviceMemoryMetrics, ...]:
        memory = self.memory
        return memory.metrics() if memory is not None else ()

    @property
    def queued(self) -> int:
        scheduler = self._scheduler  # read once: the unload sets it to None
        return scheduler.queued if scheduler is not None else 0

    @property
    def in_flight(self) -> int:
        scheduler = self._scheduler
        return scheduler.queued + scheduler.in_flight if scheduler is not None else 0

    @property
    def is_in_use(self) -> bool:
        sequences = self.sequences
        return bool(self.holds or self.in_flight or (sequences is not None and (sequences[0] or sequences[2])))

    @property
    def placements(self) -> list[Placement]:
        return [instance.placement for instance in self._instances]

    @property
    def directory(self) -> ModelDirectory:
        assert self._fetched is not None
        return self._fetched.directory

    def note_files(self, directory: ModelDirectory) -> None:
        self.content = ContentDigest(directory, self.version)

    def configure(self, config: ModelConfig, spec: ModelSpec) -> None:
        self.config = config
        self.spec = spec
        self._validator = RequestValidator(spec)
        log = self._parts.payload_log
        self._payload_log = log if log is not None and switch(config, PAYLOAD_LOG, default=True) else None

    def serve(
        self, model: BackendModel, instances: Sequence[BackendInstance], scheduler: Scheduler, fetched: Fetched
    ) -> None:
        """LOADING -> READY: accept requests from now on. The files of `fetched` are held until the unload."""
        self._model = model
        self._instances = list(instances)
        self._scheduler = scheduler
        self._answers = getattr(scheduler, "answers_at_once", None)
        self._fetched = fetched
        self.description = model.describe()
        self.load_seconds = time.monotonic() - self._started
        self._paused = PausedInstances(scheduler)
        scheduler.start()
        model.watch(self._paused.change)
        self.state.move(ModelState.READY)

    def fail(self, error: ServerError) -> None:
        self.load_seconds = time.monotonic() - self._started
        self.ran_out_of_memory = isinstance(error, OutOfMemory)
        self.hint = error.hint or ""
        self.state.move(ModelState.UNAVAILABLE, error.reason)

    def make_instance(self, placement: Placement) -> BackendInstance:
        """Make another instance on the weights of this version. `change_instances` puts it into service."""
        model = self._model
        assert model is not None
        self.attempt.begin(f"the start of instance '{placement.name}'")
        if isinstance(model, StartingModel):
            self.attempt.watch(model.end_starts)
        return model.instance(placement)

    def discard(self, instances: Sequence[BackendInstance]) -> None:
        """Close instances that do not serve, with the resources that only they needed."""
        for instance in instances:
            self.reservations.remove(instance)
            instance.close()
        model = self._model
        if model is not None:  # it may have been unloaded meanwhile
            used = [each for each in [*self._instances, *self._leaving] if each not in instances]
            model.retain({instance.placement.device for instance in used})
            self.description = model.describe()

    def shrink(self) -> None:
        """Free memory that only past executions needed, if the framework can do so and an instance is idle.

        A framework keeps memory of the GPU for each thread that calls it, so the instances' threads do it.
        """
        model, run_when_idle = self._model, getattr(self._scheduler, "run_when_idle", None)
        if isinstance(model, ShrinkableModel) and run_when_idle is not None:
            for device in {placement.device for placement in self.placements}:
                run_when_idle(device, partial(model.shrink, device))

    def measure(self, latencies: LatencyOptions) -> None:
        """Record the enabled distributions of durations from now on."""
        chosen = replace(latencies, histograms=SWITCHES.histograms)
        is_any = chosen.histograms or chosen.summaries or chosen.steps
        self.statistics.measure(LatencyMeters(chosen, histogram_buckets(self.config)) if is_any else None)

    def change_instances(self, added: Sequence[BackendInstance], removed: Sequence[int], config: ModelConfig) -> None:
        """Let `added` serve, end the instances at the indices `removed`, and take `config` as the new configuration.

        Blocks until the removed instances have finished what they run, but not until sequences, or the streams of a
        decoupled model, have ended. The others continue meanwhile.
        """
        assert self._scheduler is not None
        assert self._model is not None
        assert self._paused is not None
        leaving = [self._instances[index] for index in removed]
        for instance in added:
            self._scheduler.add(instance)
            self._instances.append(instance)
        staying = [instance for instance in self._instances if instance not in leaving]
        finishing = self._paused.remove(leaving, staying)
        self._instances = staying
        self.config = config
        self._leaving += leaving
        for instance, finish in zip(leaving, finishing, strict=True):
            threading.Thread(
                target=self._close_removed, args=(instance, finish), name=f"trident-remove-{self.name}", daemon=True
            ).start()
        if self.spec.sequence is None and not self.spec.decoupled:
            with self._released:
                self._released.wait_for(lambda: not any(instance in self._leaving for instance in leaving))
        self.description = self._model.describe()

    def _close_removed(self, instance: BackendInstance, finish: Callable[[], object]) -> None:
        try:
            finish()
            self.discard([instance])
        finally:
            with self._released:
                self._leaving.remove(instance)
                self._released.notify_all()

    def check(self, request: InferenceRequest) -> BatchForm:
        """Validate `request` and make the arrays of its inputs; see RequestValidator. Raises InvalidRequest."""
        assert self._validator is not None
        return self._validator.check(request)

    @property
    def cached_answer(self) -> CachedAnswer | None:
        """See ServedModel."""
        return self._cached_answer if self._answers is not None else None

    def _cached_answer(self, request: InferenceRequest) -> InferenceResponse | None:
        answers, validator = self._answers, self._validator
        if answers is None or validator is None:
            return None
        if (
            self._trace_gate.is_open
            or request.trace is not None
            or request.needs_regions
            or self._payload_log is not None
        ):
            return None
        try:
            batch_size, _ = validator.check(request)
        except ServerError:
            return None  # `submit` answers it
        return answers(request, batch_size)

    def submit(self, pending: PendingRequest) -> None:
        """Check and queue a request. An error, of any class, is a response. See ServedModel."""
        scheduler, validator = self._scheduler, self._validator
        try:
            if self._trace_gate.is_open:
                self._tracer.begin(pending, self.name, self.version, is_composed=bool(self.steps))
            if self._payload_log is not None:
                self._payload_log.begin(pending, self.name, self.version)
            if scheduler is None or validator is None:
                raise self._not_ready()
            request = pending.request
            if request.needs_regions:
                assert isinstance(request, RegionRequest)
                attach(pending, request, self._parts.regions)
            pending.batch_size, pending.batch_key = validator.check(request)
            pending.start_ns = time.monotonic_ns()
            scheduler.submit(pending)
        except (ServerStopping, ModelNotReady) as error:
            self._pass_on(pending, error.with_traceback(None))
        except QueueFull as error:
            self._record_refusal(pending, FailureReason.REJECTED, error.message)
            pending.fail(error)
        except ServerError as error:
            pending.fail(error)
        except Exception as error:
            pending.fail(error)
            self._record_refusal(pending, FailureReason.OTHER, UNEXPECTED)

    def _record_refusal(self, pending: PendingRequest, reason: FailureReason, text: str) -> None:
        guarded(partial(self.statistics.record_refusal, pending, reason, text), COUNTING)

    def _pass_on(self, pending: PendingRequest, refusal: ServerError) -> None:
        """Submit `pending` to the version that replaced this one; without one, answer it with `refusal`."""
        request = pending.request
        successor = self
        try:
            successor = self._find(request.model_name, request.model_version)
        except ModelCold as cold:
            cold.await_load(partial(self._pass_on, pending, refusal))
            return
        except ServerError as error:
            refusal = error.with_traceback(None)
        if successor is self:
            self._record_refusal(pending, FailureReason.OTHER, refusal.message)
            pending.refuse(refusal)
        else:
            pending.submit_to(successor)

    def _not_ready(self) -> ModelNotReady:
        return ModelNotReady(f"Request for unknown model: '{self.name}' version {self.version} is not at ready state")

    @property
    def has_failed(self) -> bool:
        return self.state.current is ModelState.UNAVAILABLE and self.state.reason != UNLOADED

    def hold(self) -> None:
        """Accept requests until `release`, also after an unload has begun. Raises ModelNotReady if one has begun."""
        with self._released:
            if self._is_leaving:
                raise self._not_ready()
            self.holds += 1

    def release(self) -> None:
        """End one hold. The last one lets an unload go on."""
        with self._released:
            self.holds -= 1
            if self._is_leaving and not self.holds:
                self.stop()
                self._released.notify_all()

    def stop(self, *, accept_nested: bool = False) -> None:
        """Accept no more requests, except nested ones with `accept_nested`; accepted ones are still answered."""
        if self._scheduler is not None:
            self._scheduler.stop(accept_nested=accept_nested)

    def drain(self, timeout_s: float) -> None:
        scheduler = self._scheduler
        if scheduler is not None:
            scheduler.drain(timeout_s)

    def begin_unload(self, cause: str) -> None:
        """READY -> UNLOADING: accept no more requests, except from callers that hold it."""
        self.state.move(ModelState.UNLOADING, cause=cause)
        with self._released:
            self._is_leaving = True
            if not self.holds:
                self.stop()

    def finish_unload(self, limit_s: float | None = None) -> None:
        """UNLOADING -> UNAVAILABLE: wait until all holds are released and accepted requests are answered, then free
        sessions, memory and files.

        After `limit_s` seconds the requests that wait are refused, and the processes are ended in which others still
        are; what runs in this process is waited for.
        """
        self._end_requests(limit_s)
        with self._released:
            self._released.wait_for(lambda: not self._leaving)
        for instance in self._instances:
            self.reservations.remove(instance)
            instance.close()
        if self._model is not None:
            self._model.close()
        if self._fetched is not None:
            self._fetched.release()
        self._scheduler = None
        self._answers = None
        self._model = None
        self._instances = []
        self._paused = None
        if self.memory is not None:
            self.memory.release()
            self.memory = None
        self.state.move(ModelState.UNAVAILABLE, self.unloaded_because)
        self.gone.set()

    def _end_requests(self, limit_s: float | None) -> None:
        is_released = False
        while not is_released:
            with self._released:
                is_released = self._released.wait_for(lambda: self._is_abandoned or not self.holds, limit_s)
            if not is_released:
                # Whoever holds it is unloaded, too, and may wait for an execution here.
                self._end_executions(limit_s)
        scheduler = self._scheduler
        if scheduler is None:
            return
        while not scheduler.drain(limit_s):
            because = f"Model '{self.name}' is unloaded, and did not end its executions within {limit_s:g} s"
            _log.error("%s; ending %d requests", because, self.in_flight, extra={"model": self.name})
            scheduler.close(timeout_s=0, because=because)
            self._abort(_OVERDUE.format(limit_s))
            for step in self.steps:
                step._end_executions(limit_s)
        scheduler.close()

    def _abort(self, reason: str, names: Collection[str] | None = None, *, for_good: bool = True) -> None:
        """End the executions of instances of these names, None for all, where that is possible."""
        for instance in [*self._instances, *self._leaving]:
            if (names is None or instance.placement.name in names) and isinstance(instance, EndableInstance):
                instance.abort(reason, for_good=for_good)

    def _end_executions(self, limit_s: float | None) -> None:
        """End those that have run for `limit_s` seconds, where that is possible; the instances go on serving."""
        if limit_s is None:
            return
        now_ns = time.monotonic_ns()
        overdue = {each.instance for each in self.statistics.executions() if now_ns - each.begin_ns >= limit_s * 1e9}
        self._abort(_OVERDUE.format(limit_s), overdue, for_good=False)

    def end_given_up(self, because: str, *, for_good: bool) -> None:
        """End the executions, here and in its steps, that hold only requests the server has given up, where that is
        possible; see EndableInstance."""
        self._abort(because, self.statistics.given_up(), for_good=for_good)
        for step in self.steps:
            step.end_given_up(because, for_good=for_good)

    def abandon(self) -> None:
        """Let `finish_unload` wait for nothing more: queued requests are told that the server is stopping, and so are
        those that run in processes of their own, which are ended."""
        with self._released:
            self._is_abandoned = True
            self._released.notify_all()
        scheduler = self._scheduler
        if scheduler is not None:
            scheduler.close(timeout_s=0)
            self._abort("the server is stopping")


class PausedInstances:
    """Instances whose processes are being restarted: they get no work while another one can execute. Any thread but an
    instance's."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._paused: list[BackendInstance] = []

    def change(self, instance: BackendInstance, serves: bool) -> None:
        """Note that `instance` serves again, or does not. Blocks until it has finished what it executes."""
        with self._lock:
            try:
                if not serves:
                    self._scheduler.forget(instance)
                if not serves and instance not in self._paused:
                    self._scheduler.remove(instance)()
                    self._paused.append(instance)
                elif serves and instance in self._paused:
                    self._paused.remove(instance)
                    self._scheduler.add(instance)
            except (ValueError, ServerStopping) as error:
                # It is the last one, or was removed, or the version is being unloaded.
                _log.debug("instance '%s' stays as it is: %s", instance.placement.name, error)

    def remove(
        self, leaving: Sequence[BackendInstance], staying: Sequence[BackendInstance]
    ) -> Sequence[Callable[[], object]]:
        """Remove all of `leaving` before waiting for any: none of them gets another sequence. Returns what
        `Scheduler.remove` does.

        If all of `staying` are paused, the first one gets work again, because a scheduler keeps an instance.
        """
        with self._lock:
            if leaving and all(instance in self._paused for instance in staying):
                self._paused.remove(staying[0])
                self._scheduler.add(staying[0])
            finishing = [(lambda: None) if each in self._paused else self._scheduler.remove(each) for each in leaving]
            self._paused = [each for each in self._paused if each not in leaving]
        return finishing
