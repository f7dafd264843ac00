"""Loads the versions of a model from its directory.

It runs on loader threads. A failure becomes the version's reason in the repository index and one log line.
Source: docs/spec/repository.md sections 1.6 and 1.9, docs/spec/model-config.md sections 2.4, 2.5 and 2.8.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trident.core.backends.backend import (
    BackendInstance,
    BackendModel,
    BlsClient,
    EndableInstance,
    Execution,
    LoadContext,
    OnChange,
    StartingModel,
    TriedModel,
    WeighingBackend,
)
from trident.core.backends.cpu_budget import available_cores, plan_threads
from trident.core.backends.registry import BackendRegistry
from trident.core.config.autocomplete import fill_identity, instance_group_problems, normalize
from trident.core.config.ensemble import EnsembleStep, compose, ensemble_steps, preserves_response_order
from trident.core.config.golden import (
    EXACT,
    ExpectedOutput,
    GoldenRequest,
    Tolerance,
    as_numbers,
    golden_requests,
    is_floating,
)
from trident.core.config.placement import DeviceKind, Placement, placement_changes, placements
from trident.core.config.platforms import is_ensemble
from trident.core.config.problem import InvalidModelConfig, ModelSignature
from trident.core.config.request_check import BatchForm
from trident.core.config.resolve import (
    WarmupSample,
    backend_spec,
    bucket_samples,
    initial_states,
    resolve_model_spec,
    warmup_samples,
    with_graph_labels,
)
from trident.core.config.schema import ModelConfig, ModelInstanceGroup, copy_of, parse_config_override
from trident.core.config.spec import ModelSpec, OutputSpec
from trident.core.errors import (
    BackendFailed,
    ConfigInvalid,
    DeviceLost,
    ModelLoadFailed,
    ModelNotReady,
    OutOfMemory,
    RepositoryUnavailable,
    ServerError,
)
from trident.core.inference.pending_request import PendingRequest, ResponseSender
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, Outputs, OutputTensor
from trident.core.inference.tensors import Array, Datatype, shape_text
from trident.core.lifecycle.attempt import LoadAttempt
from trident.core.lifecycle.memory import MemoryLedger, Need
from trident.core.lifecycle.options import EngineOptions
from trident.core.lifecycle.version import FindSteps, ModelVersion, answer_identity
from trident.core.observability.metrics.custom_metrics import CustomMetrics
from trident.core.observability.statistics import ModelProcessMetrics
from trident.core.observability.tracing.tracer import Tracer
from trident.core.repository.config import check_checksums, check_config, load_config, read_config
from trident.core.repository.repository import (
    ContentDigest,
    ModelDirectory,
    available_versions,
    chmod_hint,
    detection_files,
    layout_hint,
    read_labels,
    version_path,
)
from trident.core.repository.sources import Fetched, Located, SingleModelSource
from trident.core.response_cache.response_cache import ResponseCache
from trident.core.scheduling.instance import run_once
from trident.core.scheduling.rate_limiter import InstanceClaims, RateLimiter
from trident.core.scheduling.response_cache import CachingScheduler
from trident.core.scheduling.scheduler import Scheduler, make_scheduler
from trident.core.scheduling.sequence_tensors import InitialStates, SequenceProbe
from trident.core.shared_memory import Regions

_log = logging.getLogger("trident.lifecycle")


def _ignore(device: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model before its load: its configuration as it is written, and the existing versions, ascending.

    `layout_hint` says what its folder lacks if it has no version.
    """

    located: Located
    config: ModelConfig
    available: tuple[int, ...]
    layout_hint: str = ""


class _Loaded(NamedTuple):
    """A model that does not serve yet, its instances, and the initial states of its sequences."""

    model: BackendModel
    instances: list[BackendInstance]
    states: InitialStates


class ModelLoader:
    """Loads versions of models; any number of loader threads at once.

    `gpu_uuids` are indexed by GPU number. `on_device_lost` is called with a GPU (`Placement.device`) on which nothing
    can run any more. `models` is what the loaded models ask other models through; it is set before the first load.
    `metrics` are those that they make. `response_cache`, `rate_limiter` and `tracer` are None if the server has none.
    `regions` are those of the clients' shared memory. `memory` admits loads onto the devices that it knows; by default
    it knows none.
    """

    def __init__(
        self,
        options: EngineOptions,
        backends: BackendRegistry,
        *,
        gpu_uuids: Sequence[str] = (),
        on_device_lost: Callable[[str], None] = _ignore,
        metrics: CustomMetrics | None = None,
        response_cache: ResponseCache | None = None,
        rate_limiter: RateLimiter | None = None,
        regions: Regions | None = None,
        tracer: Tracer | None = None,
        memory: MemoryLedger | None = None,
    ) -> None:
        self._options = options
        self._tracer = tracer
        self._backends = backends
        self._gpu_uuids = tuple(gpu_uuids)
        self._threads = 0
        self.slots = LoadSlots(options.load_threads)
        self._on_device_lost = on_device_lost
        self.models: BlsClient | None = None
        self._metrics = metrics or CustomMetrics()
        self._response_cache = response_cache
        self._rate_limiter = rate_limiter
        self.regions = regions
        self.memory = memory or MemoryLedger(lambda devices: {}, {})

    def plan_threads(self, models: int) -> None:
        """Divide the container's cores among `models` sessions. Called before the first load."""
        plan = plan_threads(available_cores(), models)
        self._threads = plan.intra_op_threads
        _log.info("thread plan: %s", plan)

    def prepare(self, located: Located, override: str | None = None) -> Prepared:
        """Read the model without its graphs. `override`, JSON, replaces its configuration file.

        Raises a ServerError if the model cannot be read, or if its configuration is wrong for any graph.
        """
        name = located.key.name
        fetched = located.source.fetch(name, located.files, None)
        try:
            directory = fetched.directory
            auto_complete = self._options.auto_complete
            if override is not None:
                config = parse_config_override(override)
            else:
                config = read_config(directory, config_name=self._options.config_name, required=not auto_complete)
            if isinstance(located.source, SingleModelSource):  # it is served under the name that it was given
                config.name = name
            check_config(directory, config, self._backends, auto_complete=auto_complete)
            available = tuple(available_versions(config, directory))
            return Prepared(located, config, available, "" if available else layout_hint(directory, config))
        except OSError as error:
            hint = chmod_hint(fetched.directory.path) if isinstance(error, PermissionError) else None
            reason = f"{error.strerror}: {error.filename}"
            raise RepositoryUnavailable(f"failed to read model '{name}': {reason}", hint=hint, model=name) from error
        finally:
            fetched.release()

    def steps(self, located: Located, override: str | None) -> tuple[EnsembleStep, ...]:
        """The steps of an ensemble; empty for any other model, and for one that cannot be read: `prepare` says why."""
        try:
            config = self._written(located, override)
        except ServerError:
            return ()
        return ensemble_steps(config) if is_ensemble(config) else ()

    def _written(self, located: Located, override: str | None) -> ModelConfig:
        if override is not None:
            return parse_config_override(override)
        fetched = located.source.fetch(located.key.name, located.files, None)
        try:
            return read_config(fetched.directory, config_name=self._options.config_name)
        finally:
            fetched.release()

    def load(self, prepared: Prepared, version: ModelVersion, find_steps: FindSteps) -> None:
        """LOADING -> READY, or UNAVAILABLE with the reason after as many retries as the options allow, or when its
        attempt is ended.

        `find_steps` finds the versions that the steps of an ensemble run on. Waits for its turn: the options limit how
        many versions load at the same time.
        """
        with self.slots.taken(version.name):
            for number in range(self._options.load_retries + 1):
                _log.info("loading: %s:%d%s", version.name, version.version, version.origin)
                work = partial(self._load_once, prepared, version, find_steps)
                failure = version.attempt.run(work, self._options.load_timeout_s)
                if failure is None:
                    return
                self._note_failure(version, number, failure)
                if isinstance(failure, DeviceLost):
                    self._on_device_lost(failure.device)
                if number == self._options.load_retries or version.attempt.is_ended:
                    version.fail(failure)
                    return

    def _note_failure(self, version: ModelVersion, attempt: int, failure: ServerError) -> None:
        """`attempt` counts from 0."""
        _log.error(
            "failed to load '%s' version %d%s: %s%s",
            version.name,
            version.version,
            version.origin,
            failure.reason,
            f" ({failure.hint})" if failure.hint else "",
            extra={"model": version.name, "attempt": attempt + 1},
        )

    def change_instances(self, prepared: Prepared, version: ModelVersion) -> None:
        """Give a serving version the instances that the configuration asks for now; its weights stay.

        Raises InvalidModelConfig, or the error of a new instance; then the version continues unchanged.
        """
        config = copy_of(version.config)
        config.ClearField("instance_group")
        config.instance_group.extend(prepared.config.instance_group)
        config.version_policy.CopyFrom(prepared.config.version_policy)
        gpu_ids = self._backends.gpu_ids(config)
        normalize(config, gpu_ids)
        problems = instance_group_problems(config, version.name, gpu_ids)
        if problems:
            raise InvalidModelConfig(problems, model=version.name)
        # Another one: that of the load has succeeded.
        version.attempt = LoadAttempt(version.name)
        failure = version.attempt.run(partial(self._change_instances, version, config), self._options.load_timeout_s)
        if failure is not None:
            if isinstance(failure, DeviceLost):
                self._on_device_lost(failure.device)
            raise failure

    def _change_instances(self, version: ModelVersion, config: ModelConfig) -> None:
        removed, wanted = placement_changes(version.placements, placements(config))
        added: list[BackendInstance] = []
        samples = _with_buckets(warmup_samples(config, version.directory.path), version.spec)
        states = _initial_states(version, version.directory)
        old = {placement.device for placement in version.placements}
        new = {placement.device for placement in wanted} & self.memory.devices.keys() - old
        path = version_path(version.directory, version.version)
        need = dict.fromkeys(new, self._weight_bytes(config, path)) if new else {}
        try:
            with self._taking(version, need):
                for placement in wanted:
                    added.append(version.make_instance(placement))
                    version.attempt.watch(partial(_end, added[-1]))
                    version.claims.enter(added[-1], version.name)
                    self._warm_up(version, added[-1], samples, states)
            version.attempt.settle()
        except BaseException as exc:
            version.discard(added)
            if lost := _lost_device(added):
                raise DeviceLost(str(exc), device=lost, model=version.name) from exc
            raise
        version.change_instances(added, removed, config)

    def _load_once(self, prepared: Prepared, version: ModelVersion, find_steps: FindSteps) -> None:
        located = prepared.located
        fetched = located.source.fetch(version.name, located.files, version.version)
        try:
            others = set(prepared.available) - {version.version}
            check_checksums(fetched.directory, prepared.config, without=others)
            if self._response_cache is not None and self._response_cache.answers_later:
                version.content = ContentDigest(fetched.directory, version.version)
            loaded: _Loaded | None = None
            need = self._need_of(fetched.directory, prepared.config, version.version) if self.memory.devices else {}
            with self._taking(version, need):
                version.attempt.begin("the completion of its configuration")
                signature = self._configure(fetched.directory, prepared.config, version)
                if not is_ensemble(version.config):
                    loaded = self._load_instances(fetched.directory, version, signature)
            if loaded is None:
                self._serve_ensemble(fetched, version, find_steps)
            else:
                try:
                    self._serve(fetched, version, loaded)
                except BaseException:
                    _close_loaded(loaded, version)
                    raise
        except BaseException:
            fetched.release()
            if version.memory is not None:
                version.memory.release()
                version.memory = None
            raise

    def _serve_ensemble(self, fetched: Fetched, version: ModelVersion, find_steps: FindSteps) -> None:
        model = compose_model(version, find_steps)
        scheduler = compose_scheduler(version, model)
        try:
            golden = golden_requests(fetched.directory.path, version.spec, version.version)
            if golden:
                probe = EnsembleProbe(version.name, scheduler)
                version.attempt.watch(partial(_end, probe))
                self._check_golden(version, probe, golden)
            version.attempt.settle()
        except BaseException:
            model.close()
            raise
        version.serve(model, [], self._with_cache(scheduler, version), fetched)

    def _serve(self, fetched: Fetched, version: ModelVersion, loaded: _Loaded) -> None:
        model, instances, states = loaded
        scheduler = make_scheduler(
            version.spec,
            instances,
            version.statistics,
            delay_until=self._options.delay_scheduler,
            backlog_delay_until=self._options.backlog_delay_scheduler,
            initial_states=states,
            on_poisoned=lambda instance: self._on_device_lost(instance.placement.device),
            window=self._options.response_window,
            claims=version.claims,
        )
        version.gpu_uuid = self._gpu_uuid([instance.placement for instance in instances])
        version.attempt.settle()
        version.serve(model, instances, self._with_cache(scheduler, version), fetched)

    def _load_instances(
        self, directory: ModelDirectory, version: ModelVersion, signature: ModelSignature | None
    ) -> _Loaded:
        """The loaded model with its instances, warmed up and checked."""
        attempt = version.attempt
        attempt.begin("the load of its weights")
        backend = self._backends.find(version.config)
        context = LoadContext(
            path=version_path(directory, version.version),
            config=version.config,
            spec=backend_spec(version.spec),
            placements=placements(version.config),
            threads=self._threads,
            models=self.models,
            metrics=self._metrics,
            signature=signature,
            memory_limit=partial(self.memory.limit, version.name),
        )
        samples = warmup_samples(version.config, directory.path)
        golden = golden_requests(directory.path, version.spec, version.version)
        states = _initial_states(version, directory)
        model = backend.load(context)
        version.claims = self._claims(version, context.placements)
        spec = with_graph_labels(version.spec, version.config, model.labels)
        if isinstance(model, TriedModel) and model.separated_because:
            spec = spec.separated()
            version.restriction = (
                "each request is executed alone, because a trial has shown that the graph does not keep the requests "
                f"of a batch apart: {model.separated_because}"
            )
        version.configure(version.config, spec)
        samples = _with_buckets(samples, version.spec)
        instances: list[BackendInstance] = []
        if isinstance(model, StartingModel):
            attempt.watch(model.end_starts)
        try:
            for placement in context.placements:
                attempt.begin(f"the start of instance '{placement.name}'")
                instances.append(model.instance(placement))
                attempt.watch(partial(_end, instances[-1]))
                version.claims.enter(instances[-1], version.name)
                self._warm_up(version, instances[-1], samples, states)
            for instance in _one_per_device(instances):
                with version.claims.turn(instance):
                    self._check_golden(version, _probe(version, instance, states), golden)
        except BaseException as exc:
            _close_loaded(_Loaded(model, instances, states), version)
            if lost := _lost_device(instances):
                raise DeviceLost(str(exc), device=lost, model=version.name) from exc
            raise
        return _Loaded(model, instances, states)

    def _need_of(self, directory: ModelDirectory, written: ModelConfig, version: int) -> dict[str, int]:
        """What a model needs at least of the devices in the ledger of memory, from its configuration as it is written.

        Empty for a configuration that is wrong; its load will say so. The groups are not expanded: their counts are
        unchecked and may be huge.
        """
        config = copy_of(written)
        fill_identity(config, directory.name, detection_files(directory))
        try:
            normalize(config, self._backends.gpu_ids(config))
            size = self._weight_bytes(config, version_path(directory, version))
        except ServerError:
            return {}
        found: set[str] = set()
        for group in config.instance_group:
            if not group.passive:
                is_on_gpus = group.kind == ModelInstanceGroup.KIND_GPU
                found.update((f"gpu:{gpu}" for gpu in group.gpus) if is_on_gpus else ["cpu"])
        return dict.fromkeys(found & self.memory.devices.keys(), size)

    def _weight_bytes(self, config: ModelConfig, path: Path) -> int:
        backend = self._backends.find(config)
        return backend.weight_bytes(path, config) if isinstance(backend, WeighingBackend) else 0

    @contextmanager
    def _taking(self, version: ModelVersion, need: Need) -> Iterator[None]:
        """Load `version` inside, if there is the memory that it needs, and note what it takes.

        Raises OutOfMemory.
        """
        if not need:
            yield
            return
        with self.memory.load(version.name, (version.name, version.version, *need.items()), need) as new:
            yield
        if version.memory is None:
            version.memory = new
            self.memory.keep(new)
        else:
            version.memory.add(new)
        for device, taken in new.taken.items():
            _log.info("model '%s' version %d took %d bytes of %s", version.name, version.version, taken, device)

    def _claims(self, version: ModelVersion, placed: Sequence[Placement]) -> InstanceClaims:
        """Those of the instances on the resources that their executions hold, if the server has a rate limiter."""
        if self._rate_limiter is None and any(placement.limit.needs for placement in placed):
            _log.warning(
                "model '%s' has a rate_limiter, but the server has none: start it with --rate-limit=execution_count",
                version.name,
            )
        return InstanceClaims(self._rate_limiter)

    def _with_cache(self, scheduler: Scheduler, version: ModelVersion) -> Scheduler:
        """`scheduler`, behind the response cache if the model wants it."""
        # An ensemble is decoupled if one of its steps is, whatever its configuration says.
        if not version.config.response_cache.enable or version.spec.decoupled:
            return scheduler
        if self._response_cache is None:
            _log.warning(
                "model '%s' enables the response cache, but the server has none: start it with "
                "--cache-config=local,size=<bytes> or redis,host=<host>,port=<port>",
                version.name,
            )
            return scheduler
        cache = self._response_cache
        scope = cache.open_scope(version.name, version.version, partial(answer_identity, version))
        return CachingScheduler(scheduler, cache, scope, version.spec, version.statistics, version)

    def _gpu_uuid(self, placed: Sequence[Placement]) -> str | None:
        """The GPU of a version that runs on exactly one device, for the label of its metrics."""
        devices = {(placement.kind, placement.device_id) for placement in placed}
        if len(devices) != 1:
            return None
        kind, device_id = devices.pop()
        return self._gpu_uuids[device_id] if kind is DeviceKind.GPU and device_id < len(self._gpu_uuids) else None

    def _configure(
        self, directory: ModelDirectory, written: ModelConfig, version: ModelVersion
    ) -> ModelSignature | None:
        """Complete the configuration. Returns the signature of the graph, if it was completed from that."""
        config, signature = load_config(
            directory,
            written,
            self._backends,
            auto_complete=self._options.auto_complete,
            version=version.version,
            watch=version.attempt.watch,
        )
        version.configure(config, resolve_model_spec(config, version.version, read_labels(directory, config)))
        if self._tracer is not None:
            version.trace_with(self._tracer)
        version.measure(self._options.latencies)
        return signature

    def _warm_up(
        self, version: ModelVersion, instance: BackendInstance, samples: Sequence[WarmupSample], states: InitialStates
    ) -> None:
        probe = _probe(version, instance, states)
        for sample in samples:
            for iteration in range(sample.count):
                version.attempt.begin(f"warmup sample '{sample.name}' on instance '{instance.placement.name}'")
                _log.debug(
                    "model '%s' instance %s is running warmup sample '%s' for iteration %d",
                    version.name,
                    instance.placement.name,
                    sample.name,
                    iteration + 1,
                )
                try:
                    requests = [sample.request(version.spec) for _ in range(sample.batch_size)]
                    with version.claims.turn(instance):
                        run_once(probe, requests, version.check)
                except ServerError as error:
                    kind = OutOfMemory if isinstance(error, OutOfMemory) else ConfigInvalid
                    raise kind(sample.failure(error.message), hint=error.hint) from error

    def _check_golden(self, version: ModelVersion, probe: BackendInstance, golden: Sequence[GoldenRequest]) -> None:
        for request in golden:
            version.attempt.begin(f"golden request '{request.name}' on instance '{probe.placement.name}'")
            check_golden(probe, version.spec, version.check, [request])


class LoadSlots:
    """At most `limit` loads at once, those that wait for others not counted. Any thread."""

    def __init__(self, limit: int) -> None:
        self._slots = threading.Semaphore(max(1, limit))
        self._lock = threading.Lock()
        # The models that are being loaded, and for each the models for whose change it waits.
        self._loading: Counter[str] = Counter()
        self._waits: dict[str, Counter[str]] = {}

    @contextmanager
    def taken(self, model: str) -> Iterator[None]:
        """The load of a version of `model`. Waits for a slot."""
        with self._slots:
            with self._lock:
                self._loading[model] += 1
            try:
                yield
            finally:
                with self._lock:
                    self._loading[model] -= 1

    @contextmanager
    def lent(self, asker: str, asked: str) -> Iterator[None]:
        """The change of the model `asked` for which `asker` waits; if that is not being loaded, it has no slot to lend.

        Raises ModelLoadFailed if the change waits for the load of `asker`.
        """
        with self._lock:
            is_loading = self._loading[asker] > 0
            if is_loading:
                if self._waits_for(asked, asker):
                    raise ModelLoadFailed(
                        f"model '{asker}' cannot ask for '{asked}' while it is being loaded itself: each would wait "
                        "for the other",
                        hint="ask in `execute`, or let a client load the models one after the other",
                        model=asker,
                    )
                waits = self._waits.setdefault(asker, Counter())
                is_first = not waits
                waits[asked] += 1
        if not is_loading:
            yield
            return
        if is_first:
            self._slots.release()
        try:
            yield
        finally:
            with self._lock:
                waits[asked] -= 1
                if is_last := not +waits:
                    del self._waits[asker]
            if is_last:
                self._slots.acquire()

    def _waits_for(self, model: str, other: str) -> bool:
        return model == other or any(self._waits_for(each, other) for each in +self._waits.get(model, Counter()))


def _with_buckets(samples: Sequence[WarmupSample], spec: ModelSpec) -> list[WarmupSample]:
    """`samples`, and one for each batch bucket."""
    buckets = bucket_samples(spec, samples)
    if buckets:  # the reason why the load takes longer, perhaps much longer
        _log.info(
            "model '%s': each instance runs its %d batch buckets once before it is ready", spec.name, len(buckets)
        )
    return [*samples, *buckets]


def _initial_states(version: ModelVersion, directory: ModelDirectory) -> InitialStates:
    """Those of its sequences. Raises ConfigInvalid."""
    sequence = version.spec.sequence
    return {} if sequence is None else initial_states(version.config, sequence.states, directory.path)


def _probe(version: ModelVersion, instance: BackendInstance, states: InitialStates) -> BackendInstance:
    """`instance`, for requests that no client sent."""
    if version.spec.sequence is None:
        return instance
    return SequenceProbe(instance, version.spec, states)


def _one_per_device(instances: Sequence[BackendInstance]) -> list[BackendInstance]:
    """One instance per device: those on one device share a session and so give the same answers."""
    return list({instance.placement.device: instance for instance in instances}.values())


def _lost_device(instances: Sequence[BackendInstance]) -> str:
    """The device of an instance that can execute nothing again; "" without one."""
    return next((instance.placement.device for instance in instances if instance.poisoned), "")


def _close_loaded(loaded: _Loaded, version: ModelVersion) -> None:
    for instance in loaded.instances:
        version.claims.leave(instance)
        instance.close()
    loaded.model.close()


def _end(instance: BackendInstance, reason: str) -> None:
    if isinstance(instance, EndableInstance):
        instance.abort(reason, for_good=True)


# --- what an ensemble's version owns: not weights, but a hold on each version that its steps run on


class ComposedModel:
    """Implements BackendModel without instances. `versions[i]` runs step i; all of them accept requests until `close`,
    though they are unloaded or replaced meanwhile.
    """

    def __init__(self, versions: Sequence[ModelVersion]) -> None:
        """Raises ModelNotReady if one of them is already being unloaded; then none is held."""
        self.labels: Mapping[str, tuple[str, ...]] = {}
        self.versions = tuple(versions)
        held: list[ModelVersion] = []
        try:
            for version in dict.fromkeys(versions):
                version.hold()
                held.append(version)
        except ModelNotReady:
            _release(held)
            raise

    def describe(self) -> dict[str, str]:
        return {"device": "none", "execution provider": f"ensemble of {len(self.versions)} steps"}

    def watch(self, on_change: OnChange) -> None:
        """It has no instances."""

    @property
    def trouble(self) -> str:
        """The trouble of the first step that has one."""
        return next((version.trouble for version in self.versions if version.trouble), "")

    def check_ready(self) -> None:
        """Raises ModelNotReady if the model of a step says that it is not ready."""
        for version in set(self.versions):
            if not version.answers_ready():
                raise ModelNotReady(f"the model '{version.name}' is not ready")

    def processes(self) -> list[ModelProcessMetrics]:
        """Those of its steps are counted there."""
        return []

    def instance(self, placement: Placement) -> BackendInstance:
        raise ConfigInvalid("an ensemble has no instances")

    def retain(self, devices: Iterable[str]) -> None:
        """It has nothing on any device."""

    def close(self) -> None:
        """Let the versions go."""
        _release(dict.fromkeys(self.versions))


def compose_model(version: ModelVersion, find_steps: FindSteps) -> ComposedModel:
    """Hold the models of the steps of the configured `version`, and complete its configuration from them.

    Raises ConfigInvalid with every problem of the steps with their models.
    """
    steps = ensemble_steps(version.config)
    version.steps = tuple(find_steps(version.name, steps))
    model = ComposedModel(version.steps)
    try:
        specs = [each.spec for each in model.versions]
        composition = compose(version.spec, steps, specs)
        if composition.problems:
            hints = dict.fromkeys(problem.hint for problem in composition.problems if problem.hint)
            messages = (problem.message for problem in composition.problems)
            raise ConfigInvalid("; ".join(messages), hint="; ".join(hints) or None, model=version.name)
    except BaseException:
        model.close()
        raise
    config = copy_of(version.config)
    config.model_transaction_policy.decoupled = composition.is_decoupled
    version.configure(config, _completed(version.spec, steps, specs, composition.is_decoupled))
    return model


def _completed(
    spec: ModelSpec, steps: Sequence[EnsembleStep], models: Sequence[ModelSpec], is_decoupled: bool
) -> ModelSpec:
    """The spec of an ensemble; its outputs without labels have those of the models' outputs that they are."""
    sources: dict[str, OutputSpec] = {}
    for step, model in zip(steps, models, strict=True):
        sources |= {tensor: model.outputs[name] for name, tensor in step.outputs}
    outputs = {
        name: replace(output, labels=sources[name].labels) if name in sources and not output.labels else output
        for name, output in spec.outputs.items()
    }
    return replace(spec, outputs=outputs, decoupled=is_decoupled)


def compose_scheduler(version: ModelVersion, model: ComposedModel) -> Scheduler:
    """The scheduler of an ensemble that `compose_model` has completed."""
    from trident.core.scheduling.ensemble import EnsembleScheduler  # for servers with ensembles only

    return EnsembleScheduler(
        version.spec,
        ensemble_steps(version.config),
        model.versions,
        version.statistics,
        max_in_flight=version.config.ensemble_scheduling.max_inflight_requests,
        preserves_order=preserves_response_order(version.config),
    )


def _release(versions: Iterable[ModelVersion]) -> None:
    for version in versions:
        version.release()


# --- the golden check: a version answers the golden requests of its model as they say, or it is not loaded

_LONGEST_SHOWN = 200


def check_golden(
    instance: BackendInstance,
    spec: ModelSpec,
    check: Callable[[InferenceRequest], BatchForm],
    golden: Sequence[GoldenRequest],
) -> None:
    """Run each of `golden` alone on `instance`, which no other thread may use meanwhile. No statistics count them.

    Raises ModelLoadFailed for the first request that fails or whose response differs. It names every output that
    differs, with the index and both values of its first different element.
    """
    for request in golden:
        about = f"golden request '{request.name}' of model '{spec.name}' version {spec.version}"
        try:
            (outputs,) = run_once(instance, [request.inference_request(spec)], check)
        except ServerError as error:
            raise ModelLoadFailed(f"{about} failed: {error.message}", hint=error.hint, model=spec.name) from error
        differences = list(_differences(request.expected, outputs))
        if differences:
            raise ModelLoadFailed(
                f"{about}: {'; '.join(differences)}",
                hint=f"golden/{request.name} says what is expected, and with what tolerance",
                model=spec.name,
            )


def _differences(expected: Sequence[ExpectedOutput], outputs: Sequence[OutputTensor]) -> Iterator[str]:
    by_name = {output.name: output for output in outputs}
    for wanted in expected:
        output = by_name.get(wanted.tensor.name)
        difference = "is missing" if output is None else _difference(wanted, output)
        if difference:
            yield f"output '{wanted.tensor.name}' {difference}"


def _difference(expected: ExpectedOutput, output: OutputTensor) -> str:
    """The difference of one output as text; empty without a difference."""
    tensor, tolerance = expected.tensor, expected.tolerance
    if output.datatype != tensor.datatype.name:
        return f"has datatype {output.datatype}, expected {tensor.datatype.name}"
    if output.shape != tensor.array.shape:
        return f"has shape {shape_text(output.shape)}, expected {shape_text(tensor.array.shape)}"
    actual, wanted = (as_numbers(array.reshape(-1), tensor.datatype) for array in (output.array, tensor.array))
    differing = np.flatnonzero(~_close(actual, wanted, tensor.datatype, tolerance))
    if not differing.size:
        return ""
    first = differing[0]
    index = [int(each) for each in np.unravel_index(first, output.shape)]
    allowed = "" if tolerance == EXACT else _allowed(tolerance)
    count = f"{differing.size} of {wanted.size} elements differ{'s' if differing.size == 1 else ''}"
    return f"at {index} is {_shown(actual[first])}, expected {_shown(wanted[first])}{allowed}; {count}"


def _close(actual: Array, wanted: Array, datatype: Datatype, tolerance: Tolerance) -> Array:
    """Which elements of two flat arrays are equal within `tolerance`. NaN equals NaN, infinities only themselves."""
    equal: Array = (actual == wanted).astype(bool)
    if is_floating(datatype):
        equal |= np.isnan(actual) & np.isnan(wanted)
    if tolerance == EXACT:  # always so for BOOL and BYTES
        return equal
    with np.errstate(over="ignore", invalid="ignore"):
        allowed = tolerance.absolute + tolerance.relative * np.abs(wanted.astype(np.float64))
        close: Array = (_distance(actual, wanted) <= allowed) & np.isfinite(actual) & np.isfinite(wanted)
    return equal | close


def _distance(actual: Array, wanted: Array) -> Array:
    """|actual - wanted| of each element as FP64, without overflow in between."""
    if actual.dtype.kind == "f":
        difference: Array = np.abs(actual.astype(np.float64) - wanted.astype(np.float64))
        return difference
    # Modulo 2**64 the larger minus the smaller is right for all signs; a signed difference could overflow.
    larger, smaller = np.maximum(actual, wanted).astype(np.uint64), np.minimum(actual, wanted).astype(np.uint64)
    return (larger - smaller).astype(np.float64)


def _allowed(tolerance: Tolerance) -> str:
    return f" (tolerance {tolerance.absolute:g} absolute, {tolerance.relative:g} relative)"


def _shown(value: object) -> str:
    """One element as a golden file writes it: with the digits that its datatype needs, text in quotes."""
    if isinstance(value, bytes):
        text = value.decode("utf-8", "backslashreplace")
        return repr(text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…")
    if isinstance(value, np.bool_):
        return "true" if value else "false"
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(str(value), str(value))


class EnsembleProbe:
    """A BackendInstance in front of the scheduler of an ensemble, for the golden check. The steps count its requests.

    A request of a decoupled ensemble gets its first response.
    """

    poisoned = False
    may_run_inline = False
    answers_later = False

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        self.placement = Placement(name, DeviceKind.CPU)
        self._scheduler = scheduler
        # The request in flight, and its responses.
        self._pending: PendingRequest | None = None
        self._responses: queue.SimpleQueue[InferenceResponse] = queue.SimpleQueue()

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender] = (),
    ) -> Execution:
        outcomes: list[Outputs | Exception] = []
        for request, size in zip(requests, batch_sizes, strict=True):
            responses = self._responses = queue.SimpleQueue()
            pending = self._pending = PendingRequest(request, responses.put)
            pending.batch_size = size
            pending.submit_to(self._scheduler)
            first = last = responses.get()
            while not last.final:
                last = responses.get()
            error = first.error or last.error
            outcomes.append(error if error is not None else first.outputs)
        return Execution(outcomes, 0, 0)

    def abort(self, reason: str, *, for_good: bool) -> None:
        """Answer the request in flight; what the steps execute for it goes on. See EndableInstance."""
        pending, responses = self._pending, self._responses
        if pending is not None:
            pending.cancel()
            responses.put(InferenceResponse.failed(pending.request, BackendFailed(reason)))

    def close(self) -> None:
        """It holds nothing."""
